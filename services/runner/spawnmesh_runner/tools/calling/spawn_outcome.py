"""Spawns whose answer was lost: the child, or the refusal for the model."""

import asyncio

from spawnmesh.session.v1 import session_pb2, session_service_pb2
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason

from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.domain.reasons import RUN_LOST, TRANSIENT
from spawnmesh_runner.domain.tools import ToolRefused
from spawnmesh_runner.tools.calling.tool import CallScope

_SPAWN_SECONDS = 30.0
_PAUSE_SECONDS = 0.5


def may_have_spawned(error: MeshError) -> bool:
    """Return True if a child may exist although its spawn failed with this error.

    Either no answer arrived, or the request_id belongs to another task.
    """
    return error.reason in (Reason.REQUEST_ID_REUSED, *TRANSIENT)


async def find_child(scope: CallScope) -> session_pb2.Session | None:
    """Return the child that this call spawned.

    While it is being spawned, wait up to _SPAWN_SECONDS. Return None if there is none, if its spawn
    failed, or if the session service does not say in time. Raises MeshError if the run is lost.
    """
    request = session_service_pb2.ListSessionsRequest(
        request_id=scope.request_id, include_archived=True, view=session_pb2.SESSION_VIEW_FULL
    )
    peers = scope.peers
    try:
        async with asyncio.timeout(_SPAWN_SECONDS):
            while True:
                listed = await call_with_retry(peers.session, peers.sessions.ListSessions, request)
                if not listed.sessions:
                    return None
                [child] = listed.sessions
                if child.state == session_pb2.SESSION_STATE_SPAWN_FAILED:
                    return None
                if child.state != session_pb2.SESSION_STATE_PROVISIONING:
                    return child
                await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError:
        return None
    except MeshError as error:
        if refused_with(error, *RUN_LOST):
            raise
        return None


def unknown_spawn_refusal(why: str) -> ToolRefused:
    """Return the refusal of a call whose child was not found."""
    return ToolRefused(
        "OUTCOME_UNKNOWN",
        f"{why}; no child of this call was found. If there is one all the same, its result comes to you"
        " as a message: spawn it again only if you still need it.",
    )
