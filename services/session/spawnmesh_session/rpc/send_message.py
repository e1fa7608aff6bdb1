"""SendMessage. Puts a message into the session's inbox."""

from spawnmesh.session.v1.session_service_pb2 import SendMessageRequest, SendMessageResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.text import without_nul
from spawnmesh_session.operations.callers import calling_run_of
from spawnmesh_session.operations.message_sending import NewMessage
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import render_run


async def send_message(
    request: SendMessageRequest, caller: Caller, deps: Dependencies
) -> SendMessageResponse:
    """Put the message into the inbox, once for each request_id.

    Return the run that will read it.
    """
    message = NewMessage(request.request_id, without_nul(request.text))
    run = await deps.sender.send(caller.tenant_id, request.session_id, calling_run_of(caller), message)
    return SendMessageResponse(run=render_run(run))
