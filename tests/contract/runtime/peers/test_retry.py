"""The channel repeats a call only if its contract allows it."""

from typing import Any

import pytest
from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb
from spawnmesh.hook.v1 import hook_handler_service_pb2_grpc as pb_grpc
from spawnmesh.hook.v1.observed_pb2 import ObservedEvent, SessionEndEvent
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import impersonate


async def test_idempotent_call_is_repeated_when_a_replica_drains(serve: Any, peer_of: Any) -> None:
    calls = 0

    async def behavior(request: Any, context: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise MeshError(Reason.DRAINING, "elsewhere")
        return pb.HandleObservedEventResponse()

    assert await told(await serve(behavior), peer_of) is None
    assert calls == 3


async def test_answer_of_a_service_is_not_repeated(serve: Any, peer_of: Any) -> None:
    calls = 0

    async def behavior(request: Any, context: Any) -> Any:
        nonlocal calls
        calls += 1
        raise MeshError(Reason.PLUGIN_FAILED, "no")

    error = await told(await serve(behavior), peer_of)
    assert error is not None
    assert error.reason is Reason.PLUGIN_FAILED
    assert calls == 1


async def test_call_that_is_not_idempotent_is_not_repeated(
    serve: Any, peer_of: Any, request_with: Any
) -> None:
    calls = 0

    async def behavior(request: Any, context: Any) -> Any:
        nonlocal calls
        calls += 1
        raise MeshError(Reason.DRAINING, "elsewhere")

    served = await serve(behavior)
    async with peer_of(served.target) as peer:
        with impersonate("acme"), pytest.raises(MeshError):
            await peer.unary(pb_grpc.HookHandlerServiceStub(peer.channel).HandleBeforeSpawn, request_with())
    assert calls == 1


async def told(served: Any, peer_of: Any) -> MeshError | None:
    event = ObservedEvent(event_key="e", session_id="ses_1", session_end=SessionEndEvent())
    request = pb.HandleObservedEventRequest(event=event)
    async with peer_of(served.target) as peer:
        with impersonate("acme"):
            try:
                await peer.unary(pb_grpc.HookHandlerServiceStub(peer.channel).HandleObservedEvent, request)
            except MeshError as error:
                return error
    return None
