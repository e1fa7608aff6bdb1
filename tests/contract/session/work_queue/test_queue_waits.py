"""The time that a run waits in the queue is a child of the span of the run."""

from dataclasses import replace
from typing import Any

import psycopg
from google.protobuf.duration_pb2 import Duration
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb

from tests.support.otlp import attributes, open_collector, sent
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.remains import Remains
from tests.support.waiting import eventually

WAIT = "wait in queue"


async def test_ClaimRuns__each_claim_has_a_span_of_the_wait_without_the_pause_of_a_delay(
    open_mesh: OpenMesh, remains: Remains
) -> None:
    async with (
        open_collector() as (endpoint, received),
        open_mesh(otlp_endpoint=endpoint, lease_ttl_seconds=1.5) as opened,
    ):
        process = replace(opened.peer.process, tracer=TracerProvider(sampler=ALWAYS_ON).get_tracer("test"))
        mesh = Mesh(replace(opened.peer, process=process), opened.keys, opened.settings)
        await mesh.create_tenant()
        session = await mesh.spawn()
        first = await mesh.claim(session.session_id)
        why = run_pb.ReleaseDelay(
            reason=reason_pb2.REASON_DEPENDENCY_UNAVAILABLE, min_pause=Duration(seconds=1)
        )
        request = run_pb.ReleaseRunRequest(epoch=first.run.epoch, delay=why)
        delayed = (await mesh.run(first, mesh.runs.ReleaseRun, request)).run
        await mesh.claim(session.session_id)
        lease_end = await due_time_of(remains, first.run.run_id)
        third = await mesh.claim(session.session_id)  # The lease was not renewed.
        spans = await eventually(lambda: trace_of(received, session.trace_id))
    waits = sorted((span for span in spans if span.name == WAIT), key=lambda span: span.start_time_unix_nano)
    activation = of_name(spans, "spawn activate")
    assert [attributes(wait)["spawnmesh.attempt"] for wait in waits] == [1, 1, 2]
    assert {attributes(wait)["spawnmesh.run.id"] for wait in waits} == {third.run.run_id}
    assert {wait.parent_span_id.hex() for wait in waits} == {first.traceparent.split("-")[2]}
    assert waits[0].start_time_unix_nano >= activation.start_time_unix_nano
    assert waits[1].start_time_unix_nano >= delayed.delay.not_before_time.ToNanoseconds()
    assert waits[2].start_time_unix_nano / 1e9 > lease_end - 0.001, "the lease is no part of it"
    assert all(wait.end_time_unix_nano > wait.start_time_unix_nano for wait in waits)


async def due_time_of(remains: Remains, run_id: str) -> float:
    """Return when the run can be claimed, in seconds of the epoch."""
    query = "select extract(epoch from due_time)::float8 from session.run_queue where run_id = %s"
    async with await psycopg.AsyncConnection.connect(remains.dsn) as link:
        row = await (await link.execute(query, (run_id,))).fetchone()
    assert row is not None
    return float(row[0])


def trace_of(received: list[Any], trace_id: str) -> list[trace_pb2.Span] | None:
    """Return the spans of the trace once three waits are among them."""
    spans = [span for _, span in sent(received) if span.trace_id.hex() == trace_id]
    return spans if [span.name for span in spans].count(WAIT) == 3 else None


def of_name(spans: list[trace_pb2.Span], name: str) -> trace_pb2.Span:
    [found] = [span for span in spans if span.name.endswith(name)]
    return found
