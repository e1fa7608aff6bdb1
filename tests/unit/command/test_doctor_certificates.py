"""Checks of the services' certificates by `spawnmesh doctor --deep`, with real handshakes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from spawnmesh_command.doctor.certificates import check_certificates
from spawnmesh_command.doctor.finding import Finding
from spawnmesh_command.settings import CommandSettings

from tests.support.runtime.authority import Authority, Leaf, Mounted

OURS = Authority("ours")


@asynccontextmanager
async def showing(leaf: Leaf) -> AsyncIterator[str]:
    """Start a gRPC server that requires client certificates of our authority."""
    server = grpc.aio.server()
    credentials = grpc.ssl_server_credentials(
        [(leaf.key, leaf.certificate)], OURS.pem, require_client_auth=True
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., Any]:
    """Check as a client whose own certificate is about to expire, which is not the subject."""
    mounted = Mounted(tmp_path / "tls")
    mounted.put(OURS.leaf("client", holds=timedelta(hours=1)), OURS)

    async def at(**targets: str) -> Finding:
        return await check_certificates(targets, CommandSettings(**mounted.settings))

    return at


def days(count: float) -> Leaf:
    return OURS.leaf("service", holds=timedelta(days=count))


async def test_the_service_whose_certificate_expires_first_decides(look: Any) -> None:
    async with showing(days(60.5)) as session, showing(days(90.5)) as hook:
        found = await look(session=session, hook=f"dns:///{hook}")
    assert (found.ok, found.detail) == (True, "2 of 2 services show one that is good for 60 days at least")


async def test_certificate_that_expires_soon_is_named(look: Any) -> None:
    async with showing(days(60.5)) as session, showing(days(3.5)) as hook:
        found = await look(session=session, hook=hook)
    assert (found.ok, found.detail) == (False, "hook's is good for 3 days only")
    assert "tls_files_unusable" in found.advice


async def test_certificate_that_has_expired_is_found_out(look: Any) -> None:
    async with showing(days(-1)) as hook:
        found = await look(hook=hook)
    assert (found.ok, found.detail) == (False, "hook's is not trusted: certificate has expired")


async def test_certificate_of_another_authority_is_found_out(look: Any) -> None:
    async with showing(Authority("theirs").leaf("service")) as hook:
        found = await look(hook=hook)
    assert found.ok is False
    assert found.detail.startswith("hook's is not trusted: ")


async def test_services_that_are_down_show_nothing(look: Any) -> None:
    found = await look(hook="127.0.0.1:1")
    assert (found.ok, found.detail) == (None, "not looked at: no service takes a connection")


async def test_name_of_the_target_must_be_on_the_certificate(look: Any) -> None:
    async with showing(days(60.5)) as hook:
        port = hook.rpartition(":")[2]
        assert (await look(hook=f"dns:///localhost:{port}")).ok is True
        other = await look(hook=f"127.0.0.2:{port}")
    assert other.ok is not True


async def test_own_certificate_that_is_none_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "tls.crt").write_text("not one")
    settings = CommandSettings(tls_cert_file=tmp_path / "tls.crt", tls_key_file=tmp_path / "tls.crt")
    found = await check_certificates({"hook": "127.0.0.1:1"}, settings)
    assert (found.ok, found.detail) == (False, "the command's own cannot be used")
