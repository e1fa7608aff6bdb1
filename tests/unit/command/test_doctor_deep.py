"""Checks of collectors by `spawnmesh doctor --deep`, and `spawnmesh keys`."""

import asyncio
import json
import stat
from pathlib import Path

import grpc
import grpc.aio
import pytest
from spawnmesh_client.wire import connect_wire
from spawnmesh_command.doctor.deep import examine_deep
from spawnmesh_command.doctor.finding import Finding
from spawnmesh_command.endpoints import find_endpoints
from spawnmesh_command.settings import CommandSettings
from spawnmesh_runtime.jwks import parse_jwks
from spawnmesh_runtime.key_files import ISSUERS

from tests.support.command.fake_mesh import invoke, unset
from tests.support.otlp import open_collector

__all__ = ["unset"]


def settings_of(**settings: object) -> CommandSettings:
    """Return settings without a mesh."""
    return CommandSettings(session_target="127.0.0.1:1", **settings)


async def finding(name: str, **settings: object) -> Finding:
    async with connect_wire(session="127.0.0.1:1", token="none") as mesh:
        findings = await examine_deep(mesh, settings_of(**settings), find_endpoints(settings_of()))
    return {one.name: one for one in findings}[name]


async def test_collector_is_sent_an_export_of_nothing() -> None:
    async with open_collector() as (endpoint, received):
        assert (await finding("telemetry", otlp_endpoint=endpoint)).ok is True
    assert [len(request.resource_spans) for request in received] == [0]
    gone = await finding("telemetry", otlp_endpoint=endpoint)
    assert (gone.ok, gone.detail) == (False, "the collector does not answer")


async def test_collector_that_takes_no_spans_is_found_out() -> None:
    async with open_collector(status=grpc.StatusCode.UNAUTHENTICATED) as (endpoint, _):
        found = await finding("telemetry", otlp_endpoint=endpoint)
    assert (found.ok, found.detail) == (False, "what answers there takes no spans: UNAUTHENTICATED")


async def test_what_speaks_another_protocol_is_no_collector() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert (await finding("telemetry", otlp_endpoint=f"http://127.0.0.1:{port}")).ok is False
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("name", ["certificate", "tenant", "storage", "providers", "run", "telemetry"])
async def test_what_cannot_be_looked_at_is_not_counted_as_wrong(name: str) -> None:
    assert (await finding(name)).ok is None


def test_keys_are_made_once_and_vouch_for_their_issuers(tmp_path: Path) -> None:
    first = invoke("keys", str(tmp_path / "keys"))
    assert (first.exit_code, first.stdout.strip()) == (0, str(tmp_path / "keys" / "jwks.json"))
    pem = (tmp_path / "keys" / "client.pem").read_bytes()
    assert stat.S_IMODE((tmp_path / "keys" / "client.pem").stat().st_mode) == 0o600
    assert invoke("keys", str(tmp_path / "keys")).exit_code == 0
    assert (tmp_path / "keys" / "client.pem").read_bytes() == pem
    jwks = (tmp_path / "keys" / "jwks.json").read_text()
    assert {key.issuer for several in parse_jwks(jwks).values() for key in several} == set(ISSUERS)
    assert "d" not in json.loads(jwks)["keys"][0], "the private part"


def test_former_keys_stay_in_the_set_until_they_are_dropped(tmp_path: Path) -> None:
    made = [invoke("keys", str(tmp_path))]
    (tmp_path / "hook.pem").unlink()
    made.append(invoke("keys", str(tmp_path)))
    assert len(json.loads((tmp_path / "jwks.json").read_text())["keys"]) == len(ISSUERS) + 1
    made.append(invoke("keys", "--drop-old", str(tmp_path)))
    assert len(json.loads((tmp_path / "jwks.json").read_text())["keys"]) == len(ISSUERS)
    assert [result.exit_code for result in made] == [0, 0, 0]


def test_an_invalid_key_file_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "client.pem").write_text("hush")
    result = invoke("keys", str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr.strip() == "error: the keys cannot be made: client.pem holds no private key"
