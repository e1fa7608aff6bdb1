"""ListInbox.

Returns the messages that no run has acknowledged, oldest first, page by page: results of children
and messages from people.
"""

from spawnmesh.session.v1.run_service_pb2 import InboxMessage as InboxMessageProto
from spawnmesh.session.v1.run_service_pb2 import ListInboxRequest, ListInboxResponse
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.inbox import InboxMessage
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import render_run_state
from spawnmesh_session.store import inbox

_DEFAULT_PAGE_SIZE = 100


async def list_inbox(request: ListInboxRequest, caller: Caller, deps: Dependencies) -> ListInboxResponse:
    """Return a page of the unread messages of the run's session, oldest first.

    Raises INVALID_REQUEST for a page token of another list.
    """
    tenant_id, session_id = caller.tenant_id, caller.session_id
    last = position_of(request, (int,), tenant_id, session_id)
    page = await inbox.list_inbox(
        deps.database,
        tenant_id,
        session_id,
        caller.run_id,
        after_position=last[0] if last else -1,
        page_size=request.page_size or _DEFAULT_PAGE_SIZE,
    )
    response = ListInboxResponse(messages=map(_render, page.messages))
    if page.end_position is not None:
        response.next_page_token = page_token([page.end_position], request, tenant_id, session_id)
    return response


def _render(message: InboxMessage) -> InboxMessageProto:
    return InboxMessageProto(
        key=message.key,
        append_request_id=message.append_request_id,
        text=message.text,
        child_session_id=message.child_session_id,
        child_run_state=render_run_state(message.child_run_state),
        create_time=timestamp_of(message.create_time),
    )
