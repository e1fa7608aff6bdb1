"""Each run has one span, from its queueing to its end, above the spans of its attempts."""

from dataclasses import replace
from typing import Any

from google.protobuf.duration_pb2 import Duration
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1.session_pb2 import RunState

from tests.support.otlp import attributes, open_collector, sent
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.remains import Remains
from tests.support.session.worker import work_once
from tests.support.waiting import eventually

ERROR, UNSET = trace_pb2.Status.STATUS_CODE_ERROR, trace_pb2.Status.STATUS_CODE_UNSET


async def test_FailRun__the_span_of_the_run_is_an_error_with_its_reason_above_its_attempts(
    open_mesh: OpenMesh, remains: Remains
) -> None:
    async with open_collector() as (endpoint, received), open_mesh(otlp_endpoint=endpoint) as opened:
        mesh = traced(opened)
        await mesh.create_tenant()
        session = await mesh.spawn()
        claimed = await mesh.claim(session.session_id)
        await mesh.run(
            claimed,
            mesh.runs.FailRun,
            run_pb.FailRunRequest(
                epoch=claimed.run.epoch, reason=reason_pb2.REASON_RUNNER_ERROR, message="no content here"
            ),
        )
        ended = await mesh.get(session.session_id)
        await work_once(mesh.settings, remains.dsn, mesh.tenant)
        run, spans = await run_span(received, session, "/SpawnSession", "wait in queue")
    spawn = of_name(spans, "/SpawnSession")
    assert run.name == "run default"
    assert (run.status.code, attributes(run)["error.type"]) == (ERROR, "RUNNER_ERROR")
    assert attributes(run)["spawnmesh.session.run.state"] == "failed"
    assert attributes(run)["gen_ai.conversation.id"] == session.session_id
    assert run.parent_span_id == spawn.span_id
    assert of_name(spans, "wait in queue").parent_span_id == run.span_id
    assert claimed.traceparent.split("-")[1:3] == [session.trace_id, run.span_id.hex()]
    begin, end = ended.latest_run.queue_time.ToNanoseconds(), ended.latest_run.end_time.ToNanoseconds()
    assert abs(run.start_time_unix_nano - begin) < 1e9
    assert abs(run.end_time_unix_nano - end) < 1e9
    assert "no content here" not in str(spans)


async def test_SpawnSession__a_run_that_nobody_claims_has_a_span_with_the_reason(
    open_mesh: OpenMesh, remains: Remains
) -> None:
    async with open_collector() as (endpoint, received), open_mesh(otlp_endpoint=endpoint) as opened:
        mesh = traced(opened)
        await mesh.create_tenant()
        session = await mesh.spawn(run_timeout=Duration(nanos=1_000_000))
        await work_once(mesh.settings, remains.dsn, mesh.tenant)
        run, _ = await run_span(received, session)
    assert (run.status.code, attributes(run)["error.type"]) == (ERROR, "RUN_TIMEOUT")
    assert run.end_time_unix_nano - run.start_time_unix_nano >= 1_000_000


async def test_KillSession__the_span_of_the_killed_run_is_no_error(
    open_mesh: OpenMesh, remains: Remains
) -> None:
    async with open_collector() as (endpoint, received), open_mesh(otlp_endpoint=endpoint) as opened:
        mesh = traced(opened)
        await mesh.create_tenant()
        session = await mesh.spawn()
        await mesh.client(
            mesh.sessions.KillSession, session_pb.KillSessionRequest(session_id=session.session_id)
        )
        await work_once(mesh.settings, remains.dsn, mesh.tenant)
        run, _ = await run_span(received, session)
    assert run.status.code == UNSET
    assert attributes(run)["spawnmesh.session.run.state"] == "killed"
    assert "error.type" not in attributes(run)


async def test_SendMessage__each_run_of_a_session_has_a_span_of_its_own(
    open_mesh: OpenMesh, remains: Remains
) -> None:
    async with open_collector() as (endpoint, received), open_mesh(otlp_endpoint=endpoint) as opened:
        mesh = traced(opened)
        await mesh.create_tenant()
        session = await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)
        claims = []
        for number in range(2):
            claims.append(claimed := await mesh.claim(session.session_id))
            failing = run_pb.FailRunRequest(epoch=claimed.run.epoch, reason=reason_pb2.REASON_NO_PROGRESS)
            failed = await mesh.run(claimed, mesh.runs.FailRun, failing)
            assert failed.run.state == RunState.RUN_STATE_FAILED
            if number == 0:
                message = session_pb.SendMessageRequest(
                    session_id=session.session_id, request_id="again", text="again"
                )
                await mesh.client(mesh.sessions.SendMessage, message)

        await work_once(mesh.settings, remains.dsn, mesh.tenant)

        def both() -> list[trace_pb2.Span] | None:
            found = runs_of(received, session)
            return found if len(found) == 2 else None

        found = await eventually(both)
    assert {run.span_id.hex() for run in found} == {claim.traceparent.split("-")[2] for claim in claims}
    assert {attributes(run)["spawnmesh.run.id"] for run in found} == {claim.run.run_id for claim in claims}


async def test_WaitSession__a_call_that_waits_starts_no_trace(open_mesh: OpenMesh) -> None:
    async with open_collector() as (endpoint, received), open_mesh(otlp_endpoint=endpoint) as opened:
        mesh = traced(opened)
        await mesh.create_tenant()
        session = await mesh.spawn()
        waiting = session_pb.WaitSessionRequest(
            session_id=session.session_id, timeout=Duration(nanos=1_000_000)
        )
        assert not (await mesh.client(mesh.sessions.WaitSession, waiting)).done
        await mesh.claim(session.session_id)
        await mesh.get(session.session_id)
        await eventually(lambda: of_names([span for _, span in sent(received)], "/GetSession"))
    roots = {span.name.rpartition("/")[2] for _, span in sent(received) if not span.parent_span_id}
    assert {"SpawnSession", "GetSession"} <= roots
    assert roots.isdisjoint({"WaitSession", "ClaimRuns"})


def traced(opened: Mesh) -> Mesh:
    """Return the mesh for a client whose calls are traced."""
    process = replace(opened.peer.process, tracer=TracerProvider(sampler=ALWAYS_ON).get_tracer("test"))
    return Mesh(replace(opened.peer, process=process), opened.keys, opened.settings)


async def run_span(
    received: list[Any], session: session_pb2.Session, *others: str
) -> tuple[trace_pb2.Span, list[trace_pb2.Span]]:
    """Return the span of the session's run and all of the trace, once it and the others
    are exported.
    """

    def exported() -> tuple[trace_pb2.Span, list[trace_pb2.Span]] | None:
        spans = trace_of(received, session)
        runs = runs_of(received, session)
        return (runs[0], spans) if runs and all(of_names(spans, name) for name in others) else None

    return await eventually(exported)


def runs_of(received: list[Any], session: session_pb2.Session) -> list[trace_pb2.Span]:
    return [span for span in trace_of(received, session) if span.name.startswith("run ")]


def trace_of(received: list[Any], session: session_pb2.Session) -> list[trace_pb2.Span]:
    return [span for _, span in sent(received) if span.trace_id.hex() == session.trace_id]


def of_names(spans: list[trace_pb2.Span], name: str) -> list[trace_pb2.Span]:
    return [span for span in spans if span.name.endswith(name) and span.kind != span.SPAN_KIND_CLIENT]


def of_name(spans: list[trace_pb2.Span], name: str) -> trace_pb2.Span:
    [found] = of_names(spans, name)
    return found
