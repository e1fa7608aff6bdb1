"""Draining: running calls finish, and new ones go to another replica."""

import asyncio
import os
import signal
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb
from spawnmesh.hook.v1 import hook_handler_service_pb2_grpc as pb_grpc
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.ports import free_ports
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.server import build_server, run_until_stopped

from tests.support.runtime.plugin import Plugin, allow


async def health_of(channel: grpc.aio.Channel, service: str) -> int:
    answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
    return int(answer.status)


async def reached(peer: Any, method: Any, request: Any) -> bool:
    """Return whether the server still accepts a call."""
    try:
        await peer.unary(method, request, timeout_seconds=0.2)
    except MeshError as error:
        return error.reason is not Reason.DEPENDENCY_UNAVAILABLE
    return True


async def test_signal_sends_new_calls_elsewhere_and_finishes_the_running_one(
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
        with impersonate("acme"):
            running = asyncio.create_task(peer.unary(method, request_with(), timeout_seconds=60))
            await begun.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            async with asyncio.timeout(60):
                while await reached(peer, method, request_with()):
                    pass
        assert not serving.done()
        finish.set()
        assert (await running).decision.HasField("allow")
    async with asyncio.timeout(60):
        await serving
    assert [event["event"] for event in events if event["event"] != "rpc"] == [
        "serving",
        "draining",
        "stopped",
    ]


async def test_call_that_outlasts_the_grace_is_cut_off(serve: Any, peer_of: Any, request_with: Any) -> None:
    begun = asyncio.Event()

    async def behavior(request: Any, context: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    served = await serve(behavior)
    async with peer_of(served.target) as peer:
        with impersonate("acme"):
            method = pb_grpc.HookHandlerServiceStub(peer.channel).HandleBeforeSpawn
            running = asyncio.create_task(peer.unary(method, request_with(), timeout_seconds=60))
        await begun.wait()
        async with asyncio.timeout(60):
            await served.server.drain_and_stop(0.05)
            with pytest.raises(MeshError) as caught:
                await running
    assert caught.value.reason in (Reason.DEPENDENCY_UNAVAILABLE, Reason.CANCELLED)


async def test_idle_server_stops_at_once(serve: Any) -> None:
    served = await serve()
    async with asyncio.timeout(60):
        await served.server.drain_and_stop(3600)


async def test_replicas_that_stop_and_start_under_load_lose_no_call(process_named: Any, peer_of: Any) -> None:
    request = pb.HandleObservedEventRequest()
    request.event.event_key, request.event.session_id = "end", "ses_1"
    request.event.session_end.SetInParent()
    ports = free_ports(2)
    targets = ",".join(f"127.0.0.1:{port}" for port in ports)
    errors: list[MeshError] = []
    calls, done = 0, False

    async def behavior(request: Any, context: Any) -> Any:
        await asyncio.sleep(0.005)
        return pb.HandleObservedEventResponse()

    async def call_steadily(method: Any) -> None:
        nonlocal calls
        while not done:
            calls += 1
            try:
                with impersonate("acme"):
                    await peer.unary(method, request, timeout_seconds=60)
            except MeshError as error:
                errors.append(error)

    async def start(port: int) -> Any:
        server = build_server(process_named("transcript"))
        pb_grpc.add_HookHandlerServiceServicer_to_server(Plugin(behavior), server)
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        return server

    running = {port: await start(port) for port in ports}
    async with peer_of(f"ipv4:{targets}") as peer, asyncio.TaskGroup() as load:
        method = pb_grpc.HookHandlerServiceStub(peer.channel).HandleObservedEvent
        for _ in range(8):
            load.create_task(call_steadily(method))
        for port in (*ports, *ports):
            before = calls
            await running[port].drain_and_stop(60)
            running[port] = await start(port)
            async with asyncio.timeout(60):
                while calls < before + 300:
                    await asyncio.sleep(0.01)
        done = True
    for server in running.values():
        await server.stop(None)
    assert errors == []
