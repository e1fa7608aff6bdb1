"""Each call has one span on each side, and they are linked."""

import asyncio
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode
from spawnmesh.hook.v1 import hook_handler_service_pb2_grpc as pb_grpc
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.telemetry import (
    continue_trace,
    current_trace_id,
    current_traceparent,
    trace_id_of,
    traced,
)

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
METHOD = "spawnmesh.hook.v1.HookHandlerService/HandleBeforeSpawn"


async def idle(served: Any) -> None:
    async with asyncio.timeout(60):
        await served.server.drain.idle()


async def test_spans_of_two_hops_nest_in_the_stored_trace(
    serve: Any, peer_of: Any, request_with: Any, spans: Any
) -> None:
    async def works(request: Any, context: Any) -> Any:
        async with traced("work", spawnmesh__attempt=2):
            raise MeshError(Reason.NOT_FOUND, "no")

    inner = await serve(works)
    async with peer_of(inner.target) as further:

        async def passes_on(request: Any, context: Any) -> Any:
            return await further.unary(
                pb_grpc.HookHandlerServiceStub(further.channel).HandleBeforeSpawn, request, timeout_seconds=60
            )

        outer = await serve(passes_on, service="hook")
        async with peer_of(outer.target) as peer:
            method = pb_grpc.HookHandlerServiceStub(peer.channel).HandleBeforeSpawn
            with continue_trace(TRACEPARENT), impersonate("acme"), pytest.raises(MeshError):
                await peer.unary(method, request_with(), timeout_seconds=60)
    await idle(outer)
    await idle(inner)
    work, inner_server, inner_client, outer_server, outer_client = sorted(
        spans.get_finished_spans(), key=lambda span: span.start_time, reverse=True
    )
    parents = [span.parent.span_id for span in (work, inner_server, inner_client, outer_server, outer_client)]
    chain = [span.context.span_id for span in (inner_server, inner_client, outer_server, outer_client)]
    assert parents == [*chain, 0xB7AD6B7169203331]
    assert {f"{span.context.trace_id:032x}" for span in spans.get_finished_spans()} == {
        trace_id_of(TRACEPARENT)
    }
    assert [span.kind for span in (inner_server, inner_client)] == [SpanKind.SERVER, SpanKind.CLIENT]
    assert [span.name for span in (inner_server, inner_client)] == [METHOD, METHOD]
    assert dict(work.attributes or {}) == {"spawnmesh.attempt": 2, "error.type": "NOT_FOUND"}
    assert dict(inner_server.attributes or {}) == {
        "rpc.system.name": "grpc",
        "rpc.method": "spawnmesh.hook.v1.HookHandlerService/HandleBeforeSpawn",
        "rpc.response.status_code": "NOT_FOUND",
        "error.type": "NOT_FOUND",
        "spawnmesh.caller.kind": "service",
        "spawnmesh.tenant.id": "acme",
    }


@pytest.mark.parametrize(
    ("reason", "fault"),
    [
        (Reason.INTERNAL, True),
        (Reason.DEPENDENCY_UNAVAILABLE, True),
        (Reason.DEADLINE_EXCEEDED, True),
        (Reason.STORED_HASH_DIFFERS, True),
        (Reason.NOT_FOUND, False),
        (Reason.CONFLICT, False),
        (Reason.RUN_QUEUE_FULL, False),
    ],
)
async def test_server_span_is_an_error_for_faults_of_the_server_alone(
    serve: Any, peer_of: Any, request_with: Any, spans: Any, reason: Reason, fault: bool
) -> None:
    async def behavior(request: Any, context: Any) -> Any:
        raise MeshError(reason, "secret text")

    served = await serve(behavior)
    async with peer_of(served.target) as peer:
        with impersonate("acme"), pytest.raises(MeshError):
            await peer.unary(
                pb_grpc.HookHandlerServiceStub(peer.channel).HandleBeforeSpawn,
                request_with(),
                timeout_seconds=60,
            )
    await idle(served)
    [span] = [span for span in spans.get_finished_spans() if span.kind is SpanKind.SERVER]
    assert span.status.status_code is (StatusCode.ERROR if fault else StatusCode.UNSET)
    assert all("secret text" not in span.to_json() for span in spans.get_finished_spans())


@pytest.mark.parametrize(
    "malformed", ["", "rubbish", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "ff" + TRACEPARENT[2:]]
)
async def test_malformed_traceparent_starts_a_new_trace(
    serve: Any, ask: Any, keys: Any, spans: Any, malformed: str
) -> None:
    served = await serve()
    token = keys.minter("hook").service_token("acme")
    await ask(
        served.target, None, metadata=(("authorization", f"Bearer {token}"), ("traceparent", malformed))
    )
    await idle(served)
    [span] = spans.get_finished_spans()
    assert span.parent is None


async def test_trace_is_left_where_the_block_ends() -> None:
    with continue_trace(TRACEPARENT):
        assert current_traceparent() == TRACEPARENT
        with continue_trace(""):
            assert current_trace_id() == ""
        assert current_trace_id() == trace_id_of(TRACEPARENT)
    assert current_traceparent() == ""
