"""ListApprovals. Returns the approvals of the tenant, oldest first, page by page."""

from spawnmesh.session.v1.approval_service_pb2 import ListApprovalsRequest, ListApprovalsResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.rpc.approval_messages import parse_state, render_approval
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_page, parse_text, render_next_page
from spawnmesh_session.store import approvals
from spawnmesh_session.store.approvals import ApprovalQuery


async def list_approvals(
    request: ListApprovalsRequest, caller: Caller, deps: Dependencies
) -> ListApprovalsResponse:
    """Return a page of the approvals that fulfil all given fields."""
    page = parse_page(request, caller)
    query = ApprovalQuery(
        state=parse_state(request.state),
        session_id=parse_text("session_id", request.session_id),
        agent_id=parse_text("agent_id", request.agent_id),
        tool_name=parse_text("tool_name", request.tool_name),
    )
    async with deps.database.transaction(caller.tenant_id) as connection:
        listed = await approvals.list_approvals(
            connection, caller.tenant_id, query, after_id=page.last_id, page_size=page.size
        )
    return ListApprovalsResponse(
        approvals=map(render_approval, listed.approvals),
        next_page_token=render_next_page(listed.next_after_id, request, caller),
    )
