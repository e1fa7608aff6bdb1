"""The probe of a plugin costs a bounded number of health checks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from spawnmesh.hook.v1.hook_handler_service_pb2_grpc import (
    HookHandlerServiceStub,
    add_HookHandlerServiceServicer_to_server,
)
from spawnmesh_calls.channel_options import peer_options
from spawnmesh_calls.connection import PeerUnresponsive
from spawnmesh_calls.renewable_channel import RenewableChannel
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.plugin_probe import PluginProbe

from tests.support.runtime.plugin import Plugin, spawn_request
from tests.support.waiting import eventually

# On the old connection and on the new one, three each.
CHECKS_TO_FIND_OUT = 6


class AnswersOnce(health_pb2_grpc.HealthServicer):
    """Answers one health check, and no other."""

    def __init__(self) -> None:
        self.count = 0

    async def Check(self, request: Any, context: Any) -> health_pb2.HealthCheckResponse:
        self.count += 1
        if self.count > 1:
            await asyncio.Event().wait()
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


class UnusedAtOnce(PluginProbe):
    unused_seconds = 0.0


async def hang(request: Any, context: Any) -> Any:
    await asyncio.Event().wait()


@asynccontextmanager
async def serving(plugin: Plugin, health: AnswersOnce) -> AsyncIterator[str]:
    server = grpc.aio.server()
    add_HookHandlerServiceServicer_to_server(plugin, server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"ipv4:127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_a_plugin_that_never_answers_its_health_again_is_checked_only_while_it_is_called(
    process_named: Callable[..., Any],
) -> None:
    plugin, health = Plugin(hang), AnswersOnce()
    process = process_named("hook")
    async with serving(plugin, health) as target:
        channel = RenewableChannel(target, None, peer_options(process.settings.max_message_bytes))
        probe = UnusedAtOnce("plugin", channel)
        peer = Peer("plugin", channel, process, probe)
        try:
            probe.wanted()
            await eventually(lambda: probe.has_health_service)
            for calls in (1, 2):
                with pytest.raises(PeerUnresponsive), impersonate("acme"):
                    await judge(peer)
                await eventually(lambda: not probe.is_away)
                assert len(plugin.seen) == calls
                assert health.count <= 1 + calls * CHECKS_TO_FIND_OUT
        finally:
            await probe.close()
            await channel.close()


async def judge(peer: Peer) -> Any:
    method: Callable[..., Awaitable[Any]] = HookHandlerServiceStub(peer.channel).HandleBeforeSpawn
    return await peer.unary(method, spawn_request(), timeout_seconds=60)  # type: ignore[arg-type]
