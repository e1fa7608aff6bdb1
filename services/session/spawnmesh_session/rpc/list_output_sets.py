"""ListOutputSets. Returns the files that runs of the session have published, page by page."""

from spawnmesh.session.v1.output_pb2 import ListOutputSetsRequest, ListOutputSetsResponse
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.operations.callers import family_root_of
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import DEFAULT_PAGE_SIZE, parse_text
from spawnmesh_session.rpc.output_messages import render_output_set
from spawnmesh_session.store import output_sets, sessions
from spawnmesh_session.store.output_sets import OutputSetQuery


async def list_output_sets(
    request: ListOutputSetsRequest, caller: Caller, deps: Dependencies
) -> ListOutputSetsResponse:
    """Return a page of the session's output sets in the order in which they were published."""
    tenant_id = caller.tenant_id
    last = position_of(request, (int,), tenant_id, caller.session_id)
    query = OutputSetQuery(
        request.session_id,
        run_id=parse_text("run_id", request.run_id),
        request_id=parse_text("request_id", request.request_id),
    )
    async with deps.database.pipelined(tenant_id) as connection:
        await sessions.read_session(
            connection, tenant_id, request.session_id, family_root=family_root_of(caller)
        )
        page = await output_sets.list_output_sets(
            connection,
            tenant_id,
            query,
            after_position=last[0] if last else 0,
            page_size=request.page_size or DEFAULT_PAGE_SIZE,
        )
    response = ListOutputSetsResponse(output_sets=map(render_output_set, page.sets))
    if page.next_after_position is not None:
        response.next_page_token = page_token(
            [page.next_after_position], request, tenant_id, caller.session_id
        )
    return response
