"""Spawns with an unknown outcome: the refusal for the model, with the children that may be
meant.
"""

import hashlib

from spawnmesh.session.v1 import session_pb2, session_service_pb2
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason

from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.domain.reasons import RUN_LOST, TRANSIENT
from spawnmesh_runner.domain.tools import ToolRefused
from spawnmesh_runner.tools.calling.tool import CallScope

_LISTED_COUNT, _SHOWN_COUNT = 100, 5


def may_have_spawned(error: MeshError) -> bool:
    """Return True if a child may exist although its spawn failed with this error.

    Either no answer arrived, or the request_id belongs to another task.
    """
    return error.reason in (Reason.REQUEST_ID_REUSED, *TRANSIENT)


async def unknown_spawn_refusal(scope: CallScope, task: str, why: str) -> ToolRefused:
    """Return the refusal. It names the newest children with the same task.

    It names none if the task was masked in the stored call, or if the children cannot be listed.
    Raises MeshError if the run is lost.
    """
    children = ", ".join(map(_shown, await _children_with_task(scope, task)))
    return ToolRefused(
        "OUTCOME_UNKNOWN",
        f"{why}; the child may or may not have been spawned."
        " If it was, its result comes to you as a message: spawn it again only where it was not."
        + (f" Children of yours that were given this very task: {children}." if children else ""),
    )


async def _children_with_task(scope: CallScope, task: str) -> list[session_pb2.Session]:
    """Return the newest children with the task, in any state."""
    request = session_service_pb2.ListSessionsRequest(
        parent_session_id=scope.session_id, page_size=_LISTED_COUNT
    )
    peers = scope.peers
    try:
        listed = await call_with_retry(peers.session, peers.sessions.ListSessions, request)
    except MeshError as error:
        if refused_with(error, *RUN_LOST):
            raise
        return []
    task_hash = hashlib.sha256(task.encode()).hexdigest()
    return [session for session in listed.sessions if session.task_hash == task_hash][:_SHOWN_COUNT]


def _shown(session: session_pb2.Session) -> str:
    state = session_pb2.SessionState.Name(session.state).removeprefix("SESSION_STATE_")
    return f"{session.session_id} ({state})"
