"""The end of a process: running calls finish, new ones are sent elsewhere."""

import asyncio
import os
import signal
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from spawnmesh.hook.v1 import hook_handler_service_pb2_grpc as pb_grpc
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.acting import acting_for
from spawnmesh_runtime.server import build_server, run_until_stopped

from .conftest import Plugin, allow


async def health_of(channel: grpc.aio.Channel, service: str) -> int:
    answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
    return int(answer.status)


async def test_signal_refuses_new_calls_and_finishes_the_running_one(
    process_named: Any, peer_of: Any, request_with: Any, events: Any
) -> None:
    begun, finish = asyncio.Event(), asyncio.Event()

    async def behavior(request: Any, context: Any) -> Any:
        begun.set()
        await finish.wait()
        return await allow(request, context)

    process = process_named("transcript")
    server = build_server(process)
    pb_grpc.add_HookHandlerServiceServicer_to_server(Plugin(behavior), server)
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(run_until_stopped(process, server, on_ready=port.set_result))
    async with peer_of(f"127.0.0.1:{await port}") as peer:
        method = pb_grpc.HookHandlerServiceStub(peer.channel).HandleBeforeSpawn
        name = "spawnmesh.hook.v1.HookHandlerService"
        assert [await health_of(peer.channel, service) for service in ("", name)] == [1, 1]
        with acting_for("acme"):
            running = asyncio.create_task(peer.unary(method, request_with(), timeout_seconds=30))
            await begun.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            async with asyncio.timeout(5):
                while await health_of(peer.channel, name) != health_pb2.HealthCheckResponse.NOT_SERVING:
                    pass
            assert await health_of(peer.channel, "") == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(MeshError) as caught:
                await peer.unary(method, request_with())
        assert (caught.value.reason, caught.value.retry_after_seconds) == (Reason.DRAINING, 0.1)
        assert not serving.done()
        finish.set()
        assert (await running).decision.HasField("allow")
    async with asyncio.timeout(5):
        await serving
    assert [event["event"] for event in events if event["event"] != "rpc"] == ["serving", "draining", "stopped"]


async def test_call_that_outlasts_the_grace_is_cut_off(serve: Any, peer_of: Any, request_with: Any) -> None:
    begun = asyncio.Event()

    async def behavior(request: Any, context: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    served = await serve(behavior)
    async with peer_of(served.target) as peer:
        with acting_for("acme"):
            method = pb_grpc.HookHandlerServiceStub(peer.channel).HandleBeforeSpawn
            running = asyncio.create_task(peer.unary(method, request_with(), timeout_seconds=30))
        await begun.wait()
        async with asyncio.timeout(5):
            await served.server.drain_and_stop(0.05)
            with pytest.raises(MeshError) as caught:
                await running
    assert caught.value.reason in (Reason.DEPENDENCY_UNAVAILABLE, Reason.CANCELLED)


async def test_idle_server_stops_at_once(serve: Any) -> None:
    served = await serve()
    async with asyncio.timeout(5):
        await served.server.drain_and_stop(60)
