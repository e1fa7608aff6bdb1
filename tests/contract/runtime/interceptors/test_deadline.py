"""Deadlines are checked before the call, enforced during it, and shortened for each hop."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from spawnmesh.hook.v1 import hook_handler_service_pb2_grpc as pb_grpc
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.call import Call
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.interceptors.deadline import bounded_calls


@dataclass
class Context:
    """The part of a call's context that the step reads. grpc drops most late calls
    before a test could see them.
    """

    seconds: float

    def time_remaining(self) -> float:
        return self.seconds


async def test_call_past_its_deadline_does_no_work() -> None:
    worked = False

    async def work(call: Call) -> None:
        nonlocal worked
        worked = True

    with pytest.raises(MeshError) as caught:
        # as much as is looked at
        await bounded_calls(work)(Call(Context(0.0)))  # type: ignore[arg-type]
    assert caught.value.reason is Reason.DEADLINE_EXCEEDED
    assert not worked


async def test_work_does_not_wait_beyond_the_deadline_even_if_the_transport_says_nothing() -> None:
    async def work(call: Call) -> None:
        await asyncio.Event().wait()

    async with asyncio.timeout(60):
        with pytest.raises(TimeoutError):
            # as much as is looked at
            await bounded_calls(work)(Call(Context(0.01)))  # type: ignore[arg-type]


async def test_work_is_stopped_at_the_deadline(
    serve: Any, peer_of: Any, request_with: Any, events: Any
) -> None:
    stopped = asyncio.Event()

    async def behavior(request: Any, context: Any) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    served = await serve(behavior)
    async with peer_of(served.target) as peer:
        method = pb_grpc.HookHandlerServiceStub(peer.channel).HandleBeforeSpawn
        with impersonate("acme"), pytest.raises(MeshError) as caught:
            await peer.unary(method, request_with(), timeout_seconds=0.1)
    assert caught.value.reason is Reason.DEADLINE_EXCEEDED
    async with asyncio.timeout(60):
        await stopped.wait()
        await served.server.drain.idle()
    assert [event["code"] for event in events if event["event"] == "rpc"] == ["DEADLINE_EXCEEDED"]


async def test_deadline_shrinks_at_each_hop(serve: Any, peer_of: Any, request_with: Any) -> None:
    left: list[float] = []

    async def notes(request: Any, context: Any) -> Any:
        left.append(context.time_remaining())
        raise MeshError(Reason.NOT_FOUND, "enough")

    inner = await serve(notes)
    async with peer_of(inner.target) as further:

        async def passes_on(request: Any, context: Any) -> Any:
            left.append(context.time_remaining())
            method = pb_grpc.HookHandlerServiceStub(further.channel).HandleBeforeSpawn
            return await further.unary(method, request, timeout_seconds=60)

        outer = await serve(passes_on, service="hook")
        async with peer_of(outer.target) as peer:
            method = pb_grpc.HookHandlerServiceStub(peer.channel).HandleBeforeSpawn
            with impersonate("acme"), pytest.raises(MeshError):
                await peer.unary(method, request_with(), timeout_seconds=9)
    assert 0 < left[1] <= left[0] - 0.01 < 9


async def test_no_call_is_made_when_no_time_is_left(serve: Any, peer_of: Any, request_with: Any) -> None:
    served = await serve()
    async with peer_of(served.target) as peer:
        method = pb_grpc.HookHandlerServiceStub(peer.channel).HandleBeforeSpawn

        async def work(call: Call) -> Any:
            return await peer.unary(method, request_with())

        with impersonate("acme"), pytest.raises(MeshError) as caught:
            # as much as is looked at
            await bounded_calls(work)(Call(Context(0.015)))  # type: ignore[arg-type]
    assert caught.value.reason is Reason.DEADLINE_EXCEEDED
    assert served.plugin.seen == []
