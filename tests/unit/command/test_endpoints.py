"""The endpoints that the command finds, and its tokens."""

import json

import jwt
import pytest
from spawnmesh_command.endpoints import LocalRefusal, NoMesh, find_endpoints, token_for, token_minter
from spawnmesh_command.settings import CommandSettings
from spawnmesh_core.reasons import Reason

from tests.support.command.fake_mesh import unset, write_mesh_file

__all__ = ["unset"]


def test_a_mesh_on_this_machine_is_found_by_its_file(tmp_path, keys):
    write_mesh_file(
        tmp_path, keys, {"session": "127.0.0.1:1", "hook": "127.0.0.1:2", "unknown": "127.0.0.1:3"}
    )

    where = find_endpoints(CommandSettings(data=tmp_path))

    assert where.targets == {"session": "127.0.0.1:1", "hook": "127.0.0.1:2"}
    assert where.key_file == keys / "client.pem"
    assert where.traces == tmp_path / "traces.otlp"


def test_relative_paths_start_at_the_file(tmp_path):
    (tmp_path / "mesh.json").write_text(
        json.dumps({"targets": {"session": "h:1"}, "keys": "keys", "traces": "t"})
    )

    where = find_endpoints(CommandSettings(data=tmp_path))

    assert (where.key_file, where.traces) == (tmp_path / "keys" / "client.pem", tmp_path / "t")


def test_console_is_that_of_a_mesh_on_this_machine(tmp_path, monkeypatch):
    content = {"targets": {"session": "h:1"}, "console": "http://127.0.0.1:2"}
    (tmp_path / "mesh.json").write_text(json.dumps(content))
    assert find_endpoints(CommandSettings(data=tmp_path)).console == "http://127.0.0.1:2"
    (tmp_path / "mesh.json").write_text(json.dumps({**content, "console": None}))
    assert find_endpoints(CommandSettings(data=tmp_path)).console == ""
    monkeypatch.setenv("SPAWNMESH_SESSION_TARGET", "elsewhere:7001")
    assert find_endpoints(CommandSettings(data=tmp_path)).console == ""


def test_one_target_can_be_set_over_the_file(tmp_path, keys):
    write_mesh_file(tmp_path, keys, {"session": "127.0.0.1:1", "transcript": "127.0.0.1:2"})

    assert (
        find_endpoints(CommandSettings(data=tmp_path, transcript_target="other:3")).targets["transcript"]
        == "other:3"
    )


def test_a_named_session_service_is_never_vouched_to_with_the_local_keys(tmp_path, keys, monkeypatch):
    write_mesh_file(tmp_path, keys, {"session": "127.0.0.1:1", "hook": "127.0.0.1:2"})
    monkeypatch.setenv("SPAWNMESH_SESSION_TARGET", "elsewhere:7001")

    where = find_endpoints(CommandSettings(data=tmp_path))

    assert where.targets == {"session": "elsewhere:7001"}
    with pytest.raises(LocalRefusal, match="TOKEN_MISSING"):
        token_for(CommandSettings(data=tmp_path), where, admin=False)


def test_url_stands_for_each_service_without_a_target_of_its_own(tmp_path, keys, monkeypatch):
    write_mesh_file(tmp_path, keys, {"session": "127.0.0.1:1", "hook": "127.0.0.1:2"})
    monkeypatch.setenv("SPAWNMESH_URL", "https://gateway")
    monkeypatch.setenv("SPAWNMESH_TRANSCRIPT_TARGET", "transcript:1")

    where = find_endpoints(CommandSettings(data=tmp_path))

    assert where.targets == {
        "session": "gateway:443",
        "transcript": "transcript:1",
        "attachment-blob": "gateway:443",
        "model-router": "gateway:443",
        "hook": "gateway:443",
    }
    assert where.addresses == {"url": "https://gateway", "transcript": "transcript:1"}
    with pytest.raises(LocalRefusal, match="TOKEN_MISSING"):
        token_for(CommandSettings(data=tmp_path), where, admin=False)


@pytest.mark.parametrize("content", [None, '{"targets": {}}'])
def test_without_a_mesh_the_advice_is_to_start_or_name_one(tmp_path, content):
    if content is not None:
        (tmp_path / "mesh.json").write_text(content)

    with pytest.raises(NoMesh, match="spawnmesh up"):
        find_endpoints(CommandSettings(data=tmp_path))


@pytest.mark.parametrize("content", ["", "[]", '{"targets": 3}', '{"targets": {"session": 5}}'])
def test_a_file_that_is_no_mesh_is_refused_without_its_content(tmp_path, content):
    (tmp_path / "mesh.json").write_text(content)

    with pytest.raises(LocalRefusal, match=r"INVALID_REQUEST: mesh\.json cannot be read"):
        find_endpoints(CommandSettings(data=tmp_path))


def test_a_token_that_is_set_goes_before_one_made_here(tmp_path, keys, monkeypatch):
    write_mesh_file(tmp_path, keys, {"session": "127.0.0.1:1"})
    monkeypatch.setenv("SPAWNMESH_TOKEN", "given")
    settings = CommandSettings(data=tmp_path)

    assert token_for(settings, find_endpoints(settings), admin=False) == "given"
    assert "given" not in repr(settings)


@pytest.mark.parametrize(("admin", "kind", "tenant"), [(False, "client", "acme"), (True, "admin", None)])
def test_tokens_made_here_are_short_and_for_the_tenant(tmp_path, keys, admin, kind, tenant):
    write_mesh_file(tmp_path, keys, {"session": "127.0.0.1:1"})
    settings = CommandSettings(data=tmp_path, tenant="acme")

    claims = jwt.decode(
        token_for(settings, find_endpoints(settings), admin=admin)(), options={"verify_signature": False}
    )

    assert (claims["kind"], claims.get("tenant")) == (kind, tenant)
    assert claims["exp"] - claims["iat"] == 300


def test_tokens_made_here_are_for_the_audience_that_is_set(tmp_path, keys, monkeypatch):
    write_mesh_file(tmp_path, keys, {"session": "127.0.0.1:1"})
    monkeypatch.setenv("SPAWNMESH_TOKEN_AUDIENCE", "other")
    settings = CommandSettings(data=tmp_path)

    claims = jwt.decode(
        token_for(settings, find_endpoints(settings), admin=False)(), options={"verify_signature": False}
    )

    assert claims["aud"] == "other"


def test_an_unreadable_key_is_reported_without_its_path(tmp_path):
    write_mesh_file(tmp_path, tmp_path / "none", {"session": "127.0.0.1:1"})

    with pytest.raises(LocalRefusal) as refused:
        token_minter(find_endpoints(CommandSettings(data=tmp_path)))

    assert refused.value.reason is Reason.TOKEN_MISSING
    assert str(tmp_path) not in str(refused.value)
