"""The calls and the spans of one small run: what they cost is a property that is kept."""

from collections import Counter
from uuid import uuid4

from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_core.spans import Span
from spawnmesh_devstack.span_file import load_spans
from spawnmesh_devstack.stack import Stack
from spawnmesh_devstack.traces import orphans

from tests.support.waiting import eventually

CALLS = {
    "spawnmesh.session.v1.SessionService/SpawnSession": 1,
    "spawnmesh.transcript.v1.TranscriptService/CreateTranscript": 1,
    "spawnmesh.transcript.v1.TranscriptService/OpenWindow": 1,
    "spawnmesh.model_router.v1.ModelRouterService/Generate": 1,
    "spawnmesh.transcript.v1.TranscriptService/AppendEntries": 2,
    "spawnmesh.session.v1.RunService/FinalizeRun": 1,
}
"""The calls that services answer for a session without files, of a tenant without plugins."""
MOST_SPANS = 21


RUNS = 3
"""On a busy machine, a call of a run may be repeated. The cheapest of so many runs counts."""


async def spans_of_a_small_run(stack: Stack, mesh: WireMesh) -> list[Span]:
    session = await mesh.spawn("Say in one word whether the sky is blue.", wait_seconds=60)

    def collected() -> list[Span] | None:
        spans = load_spans(stack.traces_file, session.trace_id)
        has_run = any(span.name.startswith("run ") for span in spans)
        call_count = sum(span.kind == "server" for span in spans)
        is_complete = has_run and not orphans(spans) and call_count >= sum(CALLS.values())
        return spans if is_complete else None

    return await eventually(collected)


async def test_a_small_run_makes_so_many_calls_and_spans(stack: Stack) -> None:
    tenant = f"t-{uuid4().hex[:12]}"
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant)
    async with connect_wire(session=stack.targets["session"], token=stack.client_token(tenant)) as mesh:
        runs = [await spans_of_a_small_run(stack, mesh) for _ in range(RUNS)]
    spans = min(runs, key=len)
    assert Counter(span.name for span in spans if span.kind == "server") == CALLS
    assert len(spans) <= MOST_SPANS, Counter(f"{span.service} {span.kind} {span.name}" for span in spans)
