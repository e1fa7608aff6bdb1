"""What `spawnmesh doctor --deep` says of certificates and collectors, and `spawnmesh keys`."""

import asyncio
import json
import stat
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding
from spawnmesh_client.cli.app import build_app
from spawnmesh_client.doctor import Finding
from spawnmesh_client.doctor_deep import examine_deep
from spawnmesh_client.mesh import connect
from spawnmesh_client.settings import ClientSettings
from spawnmesh_core.clock import utc_now
from spawnmesh_runtime.jwks import parse_jwks
from spawnmesh_runtime.key_files import ISSUERS

from tests.unit.client.fake_mesh import invoke, unset

__all__ = ["unset"]


async def finding(name: str, **settings: object) -> Finding:
    """One finding about a mesh that is not there."""
    async with connect(session="127.0.0.1:1", token="none") as mesh:
        findings = await examine_deep(mesh, ClientSettings(**settings), None)
    return {one.name: one for one in findings}[name]


def certificate(file: Path, *, days: float) -> Path:
    key, name = generate_private_key(SECP256R1()), x509.Name([])
    end = utc_now() + timedelta(days=days)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(end - timedelta(days=90))
        .not_valid_after(end)
        .sign(key, hashes.SHA256())
    )
    file.write_bytes(made.public_bytes(Encoding.PEM))
    return file


@pytest.mark.parametrize(
    ("days", "ok", "said"), [(60.5, True, "good for 60 days"), (3.5, False, "3 days only"), (-1, False, "has expired")]
)
async def test_certificate_is_told_how_long_it_holds(tmp_path: Path, days: float, ok: bool, said: str) -> None:
    file = certificate(tmp_path / "tls.crt", days=days)
    settings = {"tls_cert_file": file, "tls_key_file": file}
    found = (await examine_deep_of(settings))["certificate"]
    assert (found.ok, said in found.detail) == (ok, True)
    assert bool(found.advice) is not ok


async def examine_deep_of(settings: dict[str, object]) -> dict[str, Finding]:
    async with connect(session="127.0.0.1:1", token="none", settings=ClientSettings()) as mesh:
        return {one.name: one for one in await examine_deep(mesh, ClientSettings(**settings), None)}


async def test_certificate_that_is_none_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "tls.crt").write_text("not one")
    found = await examine_deep_of({"tls_cert_file": tmp_path / "tls.crt", "tls_key_file": tmp_path / "tls.crt"})
    assert found["certificate"].detail == "cannot be read"


async def test_collector_is_knocked_at() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert (await finding("telemetry", otlp_endpoint=f"http://127.0.0.1:{port}")).ok is True
    server.close()
    await server.wait_closed()
    gone = await finding("telemetry", otlp_endpoint=f"http://127.0.0.1:{port}")
    assert (gone.ok, gone.detail) == (False, "the collector does not answer")


@pytest.mark.parametrize("name", ["certificate", "tenant", "storage", "providers", "telemetry"])
async def test_what_cannot_be_looked_at_is_not_counted_as_wrong(name: str) -> None:
    assert (await finding(name)).ok is None


def test_keys_are_made_once_and_vouch_for_their_issuers(tmp_path: Path) -> None:
    first = invoke(build_app(), "keys", str(tmp_path / "keys"))
    assert (first.exit_code, first.stdout.strip()) == (0, str(tmp_path / "keys" / "jwks.json"))
    pem = (tmp_path / "keys" / "client.pem").read_bytes()
    assert stat.S_IMODE((tmp_path / "keys" / "client.pem").stat().st_mode) == 0o600
    assert invoke(build_app(), "keys", str(tmp_path / "keys")).exit_code == 0
    assert (tmp_path / "keys" / "client.pem").read_bytes() == pem
    jwks = (tmp_path / "keys" / "jwks.json").read_text()
    assert {key.issuer for key in parse_jwks(jwks).values()} == set(ISSUERS)
    assert "d" not in json.loads(jwks)["keys"][0], "the private part"


def test_key_file_that_is_none_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "client.pem").write_text("hush")
    result = invoke(build_app(), "keys", str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr.strip() == "error: the keys cannot be made: client.pem holds no private key"
