"""Children of which nobody knows whether they were spawned: what a model is told, and which of its children may be meant."""

import hashlib

from spawnmesh.session.v1 import session_pb2, session_service_pb2
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason

from spawnmesh_runner.domain import LOST, TRANSIENT
from spawnmesh_runner.retry import persistently
from spawnmesh_runner.tools.tool import Scope, ToolRefused

_LOOKED_AT_COUNT, _TOLD_COUNT = 100, 5


def may_have_spawned(error: MeshError) -> bool:
    """Whether a child may be there although its spawn was refused so: nothing was heard of it, or the call's id was used for another task."""
    return error.reason in (Reason.REQUEST_ID_REUSED, *TRANSIENT)


async def spawn_unknown(scope: Scope, task: str, why: str) -> ToolRefused:
    """The refusal, which names the newest children that were given the task.

    None where it was masked before it was stored, or nobody lists them. Raises MeshError where the run is lost.
    """
    children = ", ".join(map(_shown, await _children_with_task(scope, task)))
    return ToolRefused(
        "OUTCOME_UNKNOWN",
        f"{why}; the child may or may not have been spawned."
        " If it was, its result comes to you as a message: spawn it again only where it was not."
        + (f" Children of yours that were given this very task: {children}." if children else ""),
    )


async def _children_with_task(scope: Scope, task: str) -> list[session_pb2.Session]:
    """The newest ones, whatever became of them."""
    request = session_service_pb2.ListSessionsRequest(parent_session_id=scope.session_id, page_size=_LOOKED_AT_COUNT)
    mesh = scope.mesh
    try:
        listed = await persistently(mesh.session, mesh.sessions.ListSessions, request)
    except MeshError as error:
        if refused_with(error, *LOST):
            raise
        return []
    task_hash = hashlib.sha256(task.encode()).hexdigest()
    return [session for session in listed.sessions if session.task_hash == task_hash][:_TOLD_COUNT]


def _shown(session: session_pb2.Session) -> str:
    return f"{session.session_id} ({session_pb2.SessionState.Name(session.state).removeprefix('SESSION_STATE_')})"
