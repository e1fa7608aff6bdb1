"""ListInbox.

Returns the messages that no run has acknowledged, oldest first: results of children and messages
from people.
"""

from spawnmesh.session.v1.run_service_pb2 import InboxMessage as InboxMessageProto
from spawnmesh.session.v1.run_service_pb2 import ListInboxRequest, ListInboxResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.inbox import InboxMessage
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import render_run_state, render_time
from spawnmesh_session.store import inbox


async def list_inbox(request: ListInboxRequest, caller: Caller, deps: Dependencies) -> ListInboxResponse:
    """Return the unread messages of the run's session, oldest first."""
    messages = await inbox.list_inbox(deps.database, caller.tenant_id, caller.session_id)
    return ListInboxResponse(messages=map(_render, messages))


def _render(message: InboxMessage) -> InboxMessageProto:
    return InboxMessageProto(
        key=message.key,
        append_request_id=message.append_request_id,
        text=message.text,
        child_session_id=message.child_session_id,
        child_run_state=render_run_state(message.child_run_state),
        create_time=render_time(message.create_time),
    )
