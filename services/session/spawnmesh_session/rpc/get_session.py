"""GetSession. Returns one session."""

from spawnmesh.session.v1.session_service_pb2 import GetSessionRequest, GetSessionResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.operations.callers import family_root_of
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import render_session
from spawnmesh_session.store import sessions


async def get_session(request: GetSessionRequest, caller: Caller, deps: Dependencies) -> GetSessionResponse:
    """Return the session with its newest run."""
    session = await sessions.get_session(
        deps.database, caller.tenant_id, request.session_id, family_root=family_root_of(caller)
    )
    return GetSessionResponse(session=render_session(session))
