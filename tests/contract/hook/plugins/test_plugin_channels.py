"""The pool of gRPC channels to plugins."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from spawnmesh.hook.v1.hook_handler_service_pb2 import HandleObservedEventRequest
from spawnmesh.hook.v1.hook_handler_service_pb2_grpc import (
    HookHandlerServiceStub,
    add_HookHandlerServiceServicer_to_server,
)
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.clients.endpoint_guard import EndpointGuard
from spawnmesh_hook.clients.plugin_channels import PluginChannelPool
from spawnmesh_hook.domain.endpoints import Address, Endpoint, literal_address, parse_rules
from spawnmesh_hook.domain.errors import EndpointNotAllowed
from spawnmesh_plugin import Handlers, hook
from spawnmesh_plugin.serving import plugin_server
from spawnmesh_plugin.settings import PluginSettings
from spawnmesh_runtime.credentials import server_credentials
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.plugin_probe import PluginProbe
from spawnmesh_runtime.process import Process, start_process
from spawnmesh_runtime.server import build_server
from spawnmesh_runtime.settings import ProcessSettings

from tests.support.hook.fixtures import SPAWN, ended, open_mesh, refused
from tests.support.hook.scripted_plugin import ALLOW, ScriptedPlugin
from tests.support.links import open_link, to_address
from tests.support.runtime.authority import Authority, Mounted
from tests.support.waiting import eventually

# A loopback address whose certificate names the host and not the address.
APART = "127.0.0.2"
NAMES: dict[str, tuple[str, ...]] = {
    "one.example.com": ("127.0.0.1",),
    "both.example.com": ("127.0.0.1", "::1", "127.0.0.2"),
    "nowhere.example.com": (),
    "mixed.example.com": ("127.0.0.1", "169.254.169.254"),
    "localhost": (APART,),
    "other.example.com": (APART,),
}


def leading_to(name: str) -> tuple[Address, ...]:
    return tuple(filter(None, map(literal_address, NAMES.get(name, (name,)))))


async def resolve(name: str, _tenant_id: str | None) -> tuple[Address, ...]:
    return leading_to(name)


def to(peers: PluginChannelPool, host: str, port: int) -> AbstractAsyncContextManager[Peer]:
    return peers.use(Endpoint(host, port), leading_to(host))


@pytest.fixture
async def process(keys: Path) -> AsyncIterator[Process]:
    async with start_process(
        "hook", ProcessSettings(signing_key_file=keys / "hook.pem", log_level="error")
    ) as started:
        yield started


@pytest.fixture
async def peers(process: Process) -> AsyncIterator[PluginChannelPool]:
    opened = PluginChannelPool(process, max_idle=2)
    yield opened
    await opened.close()


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Three ports that accept connections and answer nothing, so that no connection fails."""
    with ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        yield [one.getsockname()[1] for one in listening]


async def test_a_channel_is_for_a_name_and_its_addresses(peers: PluginChannelPool, ports: list[int]) -> None:
    async with to(peers, "one.example.com", ports[0]) as first:
        pass
    async with to(peers, "one.example.com", ports[0]) as again:
        assert again is first
    async with to(peers, "127.0.0.1", ports[0]) as other_name:
        assert other_name is not first
    async with to(peers, "one.example.com", ports[1]) as other_port:
        assert other_port is not first


async def test_with_tls_the_certificate_must_name_the_plugin(keys: Path, tmp_path: Path) -> None:
    authority, mounted = Authority("ours"), Mounted(tmp_path / "tls")
    mounted.put(authority.leaf("plugin"), authority)
    files: dict[str, Any] = {
        **mounted.settings,
        "signing_key_file": keys / "hook.pem",
        "jwks_file": keys / "jwks.json",
    }
    settings = ProcessSettings(**files, log_level="error")
    async with AsyncExitStack() as stack:
        process = await stack.enter_async_context(start_process("hook", settings))
        assert process.tls is not None
        server = build_server(process)
        add_HookHandlerServiceServicer_to_server(ScriptedPlugin(), server)
        port = server.add_secure_port(f"{APART}:0", server_credentials(process.tls))
        await server.start()
        stack.push_async_callback(server.stop, None)
        peers = PluginChannelPool(process, max_idle=2)
        stack.push_async_callback(peers.close)
        outcomes = []
        for host in ("localhost", "other.example.com"):
            async with to(peers, host, port) as peer:
                request = HandleObservedEventRequest(event=ended("ended:1"))
                try:
                    with impersonate("acme"):
                        await peer.unary(HookHandlerServiceStub(peer.channel).HandleObservedEvent, request)
                    outcomes.append("told")
                except MeshError as error:
                    outcomes.append(error.reason)
    assert outcomes == ["told", Reason.DEPENDENCY_UNAVAILABLE]


async def test_the_least_recently_used_channel_is_closed_first(
    peers: PluginChannelPool, ports: list[int]
) -> None:
    first, second, third = ports
    used = []
    for port in (first, second, first, third):
        async with to(peers, "127.0.0.1", port) as peer:
            used.append(peer)
    async with to(peers, "127.0.0.1", first) as reused:
        assert reused is used[0]
    async with to(peers, "127.0.0.1", second) as opened_again:
        assert opened_again is not used[1]


async def test_a_channel_in_connection_backoff_is_replaced_and_its_health_service_stays_known(
    peers: PluginChannelPool,
) -> None:
    (port,) = free_ports(1)
    async with to(peers, "127.0.0.1", port) as failing, asyncio.timeout(60):
        while (state := failing.channel.get_state(True)) is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            await failing.channel.wait_for_state_change(state)
        assert isinstance(failing.probe, PluginProbe)
        failing.probe.has_health_service = True
    async with to(peers, "127.0.0.1", port) as anew:
        assert anew is not failing
        assert isinstance(anew.probe, PluginProbe)
        assert anew.probe.has_health_service


async def test_a_channel_in_use_stays_open(peers: PluginChannelPool) -> None:
    async with to(peers, "127.0.0.1", 9) as busy:
        for port in (1, 2, 3):
            async with to(peers, "127.0.0.1", port):
                pass
        async with to(peers, "127.0.0.1", 9) as same:
            assert same is busy


async def test_the_probe_of_a_silent_plugin_ends_with_its_channel(
    keys: Path, process: Process, peers: PluginChannelPool
) -> None:
    async with AsyncExitStack() as stack:
        settings = ProcessSettings(jwks_file=keys / "jwks.json", log_level="error")
        plugin = ScriptedPlugin()
        server = build_server(await stack.enter_async_context(start_process("plugin", settings)))
        add_HookHandlerServiceServicer_to_server(plugin, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        stack.push_async_callback(server.stop, None)
        link = await stack.enter_async_context(open_link(to_address(f"127.0.0.1:{port}")))
        async with to(peers, "127.0.0.1", int(link.target.rpartition(":")[2])) as peer:
            probe = peer.probe
            assert isinstance(probe, PluginProbe)
            await eventually(lambda: probe.has_health_service)
            link.hold()
            request = HandleObservedEventRequest(event=ended("ended:1"))
            with impersonate("acme"), refused(Reason.DEPENDENCY_UNAVAILABLE):
                await peer.unary(
                    HookHandlerServiceStub(peer.channel).HandleObservedEvent, request, timeout_seconds=60
                )
            assert probe.is_away
        await peers.close()
        assert not probe.is_away


async def test_names_without_addresses_and_with_refused_addresses(peers: PluginChannelPool) -> None:
    guard = EndpointGuard(parse_rules((), allow_private=True), resolve)
    assert await guard.addresses_of(Endpoint("nowhere.example.com", 1), "t") == ()
    with pytest.raises(EndpointNotAllowed):
        await guard.addresses_of(Endpoint("mixed.example.com", 1), "t")
    both = Endpoint("both.example.com", 1)
    async with peers.use(both, await guard.addresses_of(both, "t")) as peer:
        assert peer.channel is not None


async def test_UpdatePlugin__with_tls_the_certificate_must_name_the_endpoint(
    databases: dict[str, ServiceDsn], keys: Path, tmp_path: Path
) -> None:
    authority, mounted = Authority("ours"), Mounted(tmp_path / "tls")
    mounted.put(authority.leaf("plugin"), authority)
    async with open_mesh(databases["hook"], keys) as mesh, AsyncExitStack() as stack:
        tenant = mesh.tenant(await mesh.replica(**mounted.settings))
        files: dict[str, Any] = {**mounted.settings, "jwks_file": keys / "jwks.json"}
        settings = PluginSettings(**files, log_level="error")
        process = await stack.enter_async_context(start_process("plugin", settings))
        (port,) = free_ports(1)
        endpoint = f"grpc://localhost:{port}"
        server = plugin_server(process, Handlers([allow]), endpoint=endpoint, tenants={tenant.tenant_id})
        assert process.tls is not None
        server.add_secure_port(f"127.0.0.1:{port}", server_credentials(process.tls))
        await server.start()
        stack.push_async_callback(server.stop, None)
        await tenant.register("a", endpoint, SPAWN, allow_unreachable=False)
        assert (await tenant.spawn()).decision == ALLOW
        with refused(Reason.ENDPOINT_NOT_REACHED) as caught:
            await tenant.register("b", (await mesh.plugin(ALLOW)).endpoint, SPAWN, allow_unreachable=False)
        assert "certificate" in caught.value.message


@hook("before_spawn")
def allow(_event: Any) -> Any:
    return ALLOW
