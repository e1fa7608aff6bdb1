"""ListSessions.

Returns the tenant's sessions, newest first, without archived ones unless requested.
"""

from spawnmesh.session.v1.session_service_pb2 import ListSessionsRequest, ListSessionsResponse
from spawnmesh_core.errors import invalid
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.operations.callers import family_root_of
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_page, render_next_page, render_session
from spawnmesh_session.store import sessions


async def list_sessions(
    request: ListSessionsRequest, caller: Caller, deps: Dependencies
) -> ListSessionsResponse:
    """Return a page of the sessions that the caller may access, newest first."""
    page = parse_page(request, caller)
    if request.request_id and request.parent_session_id:
        raise invalid("parent_session_id", "a request_id names one session; leave out the parent")
    async with deps.database.transaction(caller.tenant_id) as connection:
        if request.request_id:
            requested = await sessions.list_requested(
                connection,
                caller.tenant_id,
                request_id=request.request_id,
                spawner=caller.session_id,
                include_archived=request.include_archived,
            )
            return ListSessionsResponse(sessions=map(render_session, requested.sessions))
        listed = await sessions.list_sessions(
            connection,
            caller.tenant_id,
            parent_session_id=request.parent_session_id,
            family_root=family_root_of(caller),
            before_id=page.last_id,
            page_size=page.size,
            include_archived=request.include_archived,
        )
    return ListSessionsResponse(
        sessions=map(render_session, listed.sessions),
        next_page_token=render_next_page(listed.next_before_id, request, caller),
    )
