"""Spawns whose answer was lost: the child, or the refusal for the model."""

import asyncio

from spawnmesh.session.v1 import session_pb2, session_service_pb2
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason

from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.domain.reasons import RUN_LOST, TRANSIENT, is_passing
from spawnmesh_runner.domain.tools import ToolRefused
from spawnmesh_runner.tools.calling.tool import CallScope

SPAWN_SECONDS = 30.0
_PAUSE_SECONDS = 0.5


def may_have_spawned(error: MeshError) -> bool:
    """Return True if a child may exist although its spawn failed with this error.

    Either no answer arrived, or the request_id belongs to another task.
    """
    return error.reason in (Reason.REQUEST_ID_REUSED, *TRANSIENT)


async def find_child(scope: CallScope) -> session_pb2.Session | None:
    """Return the child that this call spawned; None if there is none, or if its spawn failed.

    Raises MeshError if the run is lost, and if it must wait: while the session service is away, and
    while the child is being spawned for longer than SPAWN_SECONDS. Raises ToolRefused if the
    service refuses to say.
    """
    request = session_service_pb2.ListSessionsRequest(
        request_id=scope.request_id, include_archived=True, view=session_pb2.SESSION_VIEW_FULL
    )
    peers = scope.peers
    left_seconds = SPAWN_SECONDS
    while True:
        try:
            listed = await call_with_retry(peers.session, peers.sessions.ListSessions, request)
        except MeshError as error:
            if refused_with(error, *RUN_LOST) or is_passing(error):
                raise
            raise unknown_spawn_refusal(
                f"the session service refused to say ({error.reason.value})"
            ) from error
        if not listed.sessions:
            return None
        [child] = listed.sessions
        if child.state == session_pb2.SESSION_STATE_SPAWN_FAILED:
            return None
        if child.state != session_pb2.SESSION_STATE_PROVISIONING:
            return child
        if left_seconds <= 0:
            raise MeshError(Reason.SPAWN_IN_PROGRESS, "the child is still being spawned; ask again later")
        await asyncio.sleep(_PAUSE_SECONDS)
        left_seconds -= _PAUSE_SECONDS


def unknown_spawn_refusal(why: str) -> ToolRefused:
    """Return the refusal of a call that may have a child."""
    return ToolRefused(
        "OUTCOME_UNKNOWN",
        f"{why}; no child of this call was found. If there is one all the same, its result comes to you"
        " as a message: spawn it again only if you still need it.",
    )
