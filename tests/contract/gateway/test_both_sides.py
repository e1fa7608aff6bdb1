"""The gateway between a client and a service: certificates on both sides, and the headers of calls."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.session_service_pb2_grpc import (
    SessionServiceServicer,
    SessionServiceStub,
    add_SessionServiceServicer_to_server,
)
from spawnmesh_calls.wire_errors import error_from
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.gateway import envoy_program
from spawnmesh_devstack.ports import free_ports
from spawnmesh_gateway.bootstrap import BOOTSTRAP_FILE
from spawnmesh_gateway.files import write_configuration
from spawnmesh_gateway.settings import SERVICES, GatewaySettings, HostPort, Tls

from tests.support.runtime.authority import Authority, Mounted
from tests.support.waiting import eventually

PAGE_TOKEN = "seen by the service"


class Sessions(SessionServiceServicer):
    """A service that has one answer, and keeps the headers of the newest call."""

    headers: ClassVar[dict[str, str]] = {}

    async def ListSessions(self, request: object, context: Any) -> pb.ListSessionsResponse:  # type: ignore[override]
        Sessions.headers = dict(context.invocation_metadata())
        return pb.ListSessionsResponse(next_page_token=PAGE_TOKEN)


@dataclass(frozen=True)
class Gateway:
    """A running gateway with certificates on both sides."""

    port: int
    clients: Mounted

    async def list_sessions(self, authority: Authority, *headers: tuple[str, str]) -> str:
        """Call through it, as a client that trusts the authority. Raises AioRpcError."""
        await eventually(self._is_ready)
        credentials = grpc.ssl_channel_credentials(authority.pem)
        async with grpc.aio.secure_channel(f"localhost:{self.port}", credentials) as channel:
            call = SessionServiceStub(channel).ListSessions
            answer = await call(pb.ListSessionsRequest(), metadata=headers, wait_for_ready=True, timeout=60)
        return str(answer.next_page_token)

    async def _is_ready(self) -> bool:
        """Return whether it listens: it does when it has looked at the services for the first time."""
        try:
            await self.shown()
        except OSError:
            return False
        return True

    async def shown(self) -> str:
        """Return the certificate that it shows to clients, in PEM."""
        return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", self.port))


@asynccontextmanager
async def service_of(files: Mounted) -> AsyncIterator[int]:
    """Serve with a certificate, to peers that show one of the authority."""
    key, certificate, authority = (
        (files.folder / name).read_bytes() for name in ("tls.key", "tls.crt", "ca.crt")
    )
    credentials = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
    server = grpc.aio.server()
    add_SessionServiceServicer_to_server(Sessions(), server)
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


def tls(files: Mounted) -> Tls:
    folder = PurePosixPath(files.folder)
    return Tls(folder / "tls.crt", folder / "tls.key", folder / "ca.crt")


@asynccontextmanager
async def gateway_before(
    upstream: int, mesh: Mounted, clients: Mounted, folder: Path
) -> AsyncIterator[Gateway]:
    (port,) = free_ports(1)
    settings = GatewaySettings(
        HostPort("127.0.0.1", port),
        dict.fromkeys(SERVICES, f"127.0.0.1:{upstream}"),
        upstream_tls=tls(mesh),
        downstream_tls=tls(clients),
        upstream_hosts=dict.fromkeys(SERVICES, "localhost"),
        folder=PurePosixPath(folder),
    )
    write_configuration(folder, settings)
    log = (folder / "log").open("wb")
    envoy = await asyncio.create_subprocess_exec(
        envoy_program(), "-c", folder / BOOTSTRAP_FILE, "--disable-hot-restart", "--concurrency", "1",
        stdout=log, stderr=log,
    )  # fmt: skip
    try:
        yield Gateway(port, clients)
    finally:
        envoy.terminate()
        await envoy.wait()
        log.close()


@pytest.fixture
def ours() -> Authority:
    return Authority("ours")


def mounted(folder: Path, holder: Authority, trusted: Authority) -> Mounted:
    files = Mounted(folder)
    files.put(holder.leaf(folder.name), trusted)
    return files


async def test_call_goes_through_with_certificates_of_the_authority(ours: Authority, tmp_path: Path) -> None:
    service, own = (mounted(tmp_path / name, ours, ours) for name in ("service", "own"))
    async with service_of(service) as upstream, gateway_before(upstream, own, own, tmp_path / "g") as gateway:
        assert await gateway.list_sessions(ours) == PAGE_TOKEN


@pytest.mark.parametrize("stranger", ["service", "gateway"])
async def test_certificate_of_another_authority_is_refused_on_both_sides(
    ours: Authority, tmp_path: Path, stranger: str
) -> None:
    others = Authority("others")
    service = mounted(tmp_path / "service", others if stranger == "service" else ours, ours)
    mesh = mounted(tmp_path / "mesh", others if stranger == "gateway" else ours, ours)
    clients = mounted(tmp_path / "clients", ours, ours)
    async with (
        service_of(service) as upstream,
        gateway_before(upstream, mesh, clients, tmp_path / "g") as gateway,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await gateway.list_sessions(ours)
    assert error_from("gateway", caught.value).reason is Reason.DEPENDENCY_UNAVAILABLE


async def test_renewed_certificate_is_shown_without_a_restart(ours: Authority, tmp_path: Path) -> None:
    service, own, clients = (mounted(tmp_path / name, ours, ours) for name in ("service", "own", "clients"))
    async with (
        service_of(service) as upstream,
        gateway_before(upstream, own, clients, tmp_path / "g") as gateway,
    ):
        assert await gateway.list_sessions(ours) == PAGE_TOKEN
        before = await gateway.shown()
        clients.put(ours.leaf("renewed"), ours)

        async def is_renewed() -> bool:
            return await gateway.shown() != before

        await eventually(is_renewed)
        assert await gateway.list_sessions(ours) == PAGE_TOKEN


async def test_token_and_trace_arrive_as_they_are_and_forged_headers_do_not(
    ours: Authority, tmp_path: Path
) -> None:
    service, own = (mounted(tmp_path / name, ours, ours) for name in ("service", "own"))
    kept = {
        "authorization": "Bearer any.token.at-all",
        "traceparent": f"00-{32 * 'a'}-{16 * 'b'}-01",
        "tracestate": "vendor=1",
    }
    forged = {
        "x-forwarded-for": "203.0.113.7",
        "x-forwarded-host": "elsewhere",
        "x-envoy-original-path": "/elsewhere",
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-envoy-external-address": "203.0.113.7",
        "x-request-id": "chosen",
        "x-real-ip": "203.0.113.7",
        "forwarded": "for=203.0.113.7",
    }
    async with service_of(service) as upstream, gateway_before(upstream, own, own, tmp_path / "g") as gateway:
        assert await gateway.list_sessions(ours, *kept.items(), *forged.items()) == PAGE_TOKEN
    seen = Sessions.headers
    assert {name: seen[name] for name in kept} == kept
    assert {name: value for name, value in forged.items() if seen.get(name) == value} == {}
    assert "203.0.113.7" not in seen["x-forwarded-for"]
    assert "," not in seen["x-forwarded-for"]
    # Envoy's own word on the address of the caller, which is of this machine here.
    assert {name for name in seen if name.startswith("x-envoy-")} <= {"x-envoy-internal"}
