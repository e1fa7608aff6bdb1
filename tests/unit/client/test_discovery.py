"""The mesh that a client finds, and the token that it uses for it."""

import json
from pathlib import Path

import pytest
from spawnmesh_client import Unauthenticated, Unavailable, connect
from spawnmesh_client.discovery import find_mesh, parse_url
from spawnmesh_client.settings import SERVICES, MeshEnvironment


def local(folder: Path, *, token: str = "local") -> MeshEnvironment:
    """Return the environment of a program beside a mesh on this machine."""
    (folder / "mesh.json").write_text(json.dumps({"targets": {"session": "127.0.0.1:1", "S3": "x"}}))
    if token:
        (folder / "client.token").write_text(f"{token}\n")
    return MeshEnvironment(data=folder)


def test_url_is_the_address_of_every_service() -> None:
    found = find_mesh("https://mesh.example.com", None, "t", MeshEnvironment(url="http://other"))
    assert found.targets == dict.fromkeys(SERVICES, "mesh.example.com:443")
    assert (found.scheme, found.token) == ("https", "t")


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://127.0.0.1:8080", ("127.0.0.1:8080", "http")),
        ("http://mesh/", ("mesh:80", "http")),
        ("https://[::1]:9", ("[::1]:9", "https")),
    ],
    ids=["port", "no-port", "ipv6"],
)
def test_url_with_and_without_a_port(url: str, origin: tuple[str, str]) -> None:
    assert parse_url(url) == origin


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8080", "grpc://mesh", "https://", "https://mesh/v1", "https://me@mesh", "http://mesh:x"],
    ids=["no-scheme", "scheme", "no-host", "path", "user", "port"],
)
def test_url_that_is_no_origin_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"url|[Pp]ort"):
        find_mesh(url, None, "t", MeshEnvironment())


def test_environment_names_a_url_or_targets() -> None:
    variables = {
        "SPAWNMESH_URL": " http://mesh:8080 ",
        "SPAWNMESH_TOKEN": "secret\n",
        "SPAWNMESH_MODEL_ROUTER_TARGET": "router:1",
        "SPAWNMESH_SESSION_TARGET": "session:1",
    }
    environment = MeshEnvironment.read(variables)
    assert find_mesh("", None, None, environment).targets == dict.fromkeys(SERVICES, "mesh:8080")
    assert "secret" not in repr(environment)

    without = MeshEnvironment.read({**variables, "SPAWNMESH_URL": ""})
    found = find_mesh("", None, None, without)
    assert found.targets == {"session": "session:1", "model-router": "router:1"}
    assert (found.scheme, found.token) == ("", "secret")


def test_given_targets_go_before_the_environment() -> None:
    environment = MeshEnvironment(url="http://mesh", targets={"session": "b:1"}, token="t")
    assert find_mesh("", {"session": "a:1"}, None, environment).targets == {"session": "a:1"}


@pytest.mark.parametrize(
    ("targets", "message"),
    [({"sesion": "a:1"}, "no service sesion"), ({"hook": "a:1"}, "`session` is missing")],
    ids=["unknown", "no-session"],
)
def test_targets_of_no_mesh_are_refused(targets: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_mesh("", targets, "t", MeshEnvironment())


def test_url_and_targets_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="not both"):
        find_mesh("http://mesh", {"session": "a:1"}, "t", MeshEnvironment())


def test_local_mesh_brings_its_token_and_a_restart_renews_it(tmp_path: Path) -> None:
    found = find_mesh("", None, None, local(tmp_path))
    assert found.targets == {"session": "127.0.0.1:1"}
    assert callable(found.token)
    assert found.token() == "local"
    (tmp_path / "client.token").write_text("renewed")
    assert found.token() == "renewed"


def test_token_of_the_local_mesh_is_for_no_other_mesh(tmp_path: Path) -> None:
    environment = local(tmp_path)
    with pytest.raises(Unauthenticated, match="spawnmesh token"):
        find_mesh("https://mesh.example.com", None, None, environment)


def test_given_token_goes_before_the_local_one(tmp_path: Path) -> None:
    environment = local(tmp_path)
    assert find_mesh("", None, "given", environment).token == "given"
    named = MeshEnvironment(token="named", data=tmp_path)
    assert find_mesh("", None, None, named).token == "named"


def test_local_mesh_without_a_token_file_asks_for_one(tmp_path: Path) -> None:
    with pytest.raises(Unauthenticated, match="SPAWNMESH_TOKEN"):
        find_mesh("", None, None, local(tmp_path, token=""))


def test_token_with_a_space_is_refused_before_any_call() -> None:
    with pytest.raises(Unauthenticated, match="such as a space"):
        find_mesh("http://mesh", None, "Bearer t", MeshEnvironment())


async def test_no_mesh_at_all_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("URL", "DATA", "TOKEN", *(f"{one.replace('-', '_').upper()}_TARGET" for one in SERVICES)):
        monkeypatch.delenv(f"SPAWNMESH_{name}", raising=False)
    with pytest.raises(Unavailable, match="SPAWNMESH_URL"):
        async with connect(token="t"):
            pass


@pytest.mark.parametrize("content", ["", "{}", '{"targets": []}', "[]", '{"targets": {}}'])
def test_file_of_a_mesh_that_names_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "mesh.json").write_text(content)
    with pytest.raises(Unavailable, match=r"mesh\.json names no session service"):
        find_mesh("", None, "t", MeshEnvironment(data=tmp_path))
