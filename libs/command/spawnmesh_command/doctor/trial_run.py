"""Check that sessions run: one with a small task, from its spawn to its end."""

from spawnmesh.session.v1 import session_pb2
from spawnmesh_calls.wire_reasons import reason_of
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError

from spawnmesh_command.doctor.finding import Finding

_TASK = "Answer with the single word: ready"
_RUN_SECONDS = 45.0
_END_SECONDS = 15.0  # The mesh needs this time to notice that a run timed out.


async def check_run(mesh: WireMesh) -> Finding:
    """Spawn a session for the tenant's default agent, wait for its end and delete it in any
    case.

    It costs the tenant one model call.
    """
    try:
        session = await mesh.spawn(_TASK, label="doctor", run_timeout_seconds=_RUN_SECONDS)
    except MeshError as error:
        return Finding("run", False, f"no session can be spawned: {error}", "see the log of session")
    session_id = session.session_id
    try:
        found = await _outcome(mesh, session_id)
    finally:
        left = await _left(mesh, session_id)
    return left if left is not None and found.ok else found


async def _outcome(mesh: WireMesh, session_id: str) -> Finding:
    begin = monotonic_seconds()
    try:
        ended = await mesh.wait(session_id, _RUN_SECONDS + _END_SECONDS)
    except MeshError as error:
        return Finding("run", False, f"a session cannot be waited for: {error}", "see the log of session")
    return _judged(ended.session, monotonic_seconds() - begin)


def _judged(session: session_pb2.Session, seconds: float) -> Finding:
    run = session.latest_run
    tried = run.attempt_count > 0
    match run.state:
        case session_pb2.RUN_STATE_SUCCEEDED:
            return Finding("run", True, f"a runner took a session and ended it in {seconds:.1f} s")
        case session_pb2.RUN_STATE_UNSPECIFIED:
            why = reason_of(session.failure_reason) or "it got no run"
            return Finding(
                "run", False, f"a session was not made ready: {why}", "see the logs of session and its worker"
            )
        case session_pb2.RUN_STATE_QUEUED | session_pb2.RUN_STATE_TIMED_OUT if not tried:
            advice = (
                "see that runners are there and reach session: their log, and the concurrency they are given"
            )
            return Finding("run", False, f"no runner took a session in {seconds:.0f} s", advice)
        case (
            session_pb2.RUN_STATE_QUEUED
            | session_pb2.RUN_STATE_RUNNING
            | session_pb2.RUN_STATE_WAITING_APPROVAL
            | session_pb2.RUN_STATE_WAITING_BUDGET
            | session_pb2.RUN_STATE_FINALIZING
        ):
            advice = "see the log of the runner: what it waits for, or that it keeps on being stopped"
            tries = f"{run.attempt_count} tr{'y' if run.attempt_count == 1 else 'ies'}"
            return Finding(
                "run",
                False,
                f"a runner took a session, but there is no end after {seconds:.0f} s and {tries}",
                advice,
            )
    parts = (reason_of(run.error_reason), run.error_message)
    why = ": ".join(part for part in parts if part) or "no reason is given"
    how = session_pb2.RunState.Name(run.state).removeprefix("RUN_STATE_").lower()
    advice = "runners work; see the logs of runner and model-router for what it met"
    return Finding("run", False, f"a session's run ended as {how}: {why}", advice)


async def _left(mesh: WireMesh, session_id: str) -> Finding | None:
    """Delete the session. Return a finding if that fails."""
    try:
        await mesh.delete(session_id)
    except MeshError as error:
        return Finding(
            "run", False, f"a session ran, but cannot be deleted: {error}", f"spawnmesh delete {session_id}"
        )
    return None
