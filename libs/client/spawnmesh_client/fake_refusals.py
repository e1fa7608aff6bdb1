"""The refusals of a FakeMesh, and the words of states in them."""

from spawnmesh.session.v1 import session_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status


def session_state(session: session_pb2.Session) -> str:
    """Return the state of the session, such as `CLOSED`."""
    return session_pb2.SessionState.Name(session.state).removeprefix("SESSION_STATE_")


def run_state(run: session_pb2.Run) -> str:
    """Return the state of the run, such as `RUNNING`."""
    return session_pb2.RunState.Name(run.state).removeprefix("RUN_STATE_")


def run_ended(run: session_pb2.Run) -> MeshError:
    """Return the refusal of a message to a run that has ended."""
    state = run_state(run)
    return MeshError(
        Reason.RUN_STATE,
        f"run {run.run_id} has ended as {state}; send the message without naming it",
        facts={"run_id": run.run_id, "state": state},
    )


def spawn_undone(cause: MeshError) -> MeshError:
    """Return the refusal of a spawn whose files could not be found."""
    return MeshError(
        Reason.SPAWN_FAILED,
        f"the spawn was undone at step 'provision': {cause.message};"
        " it would fail again; spawn with a new request_id when the cause is gone",
        status=Status.FAILED_PRECONDITION,
        facts={**cause.facts, "step": "provision", "cause": cause.reason},
    )


def id_reused(request_id: str) -> MeshError:
    """Return the refusal of a request_id with another payload."""
    return MeshError(
        Reason.REQUEST_ID_REUSED,
        f"request_id {request_id!r} was used before with another payload; draw a new one",
        facts={"request_id": request_id},
    )
