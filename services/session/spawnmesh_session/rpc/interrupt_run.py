"""InterruptRun.

Stops what the session's live run is doing. With a text, the run goes on with that message; else it
ends as INTERRUPTED and the session stays open.
"""

from spawnmesh.session.v1.session_service_pb2 import InterruptRunRequest, InterruptRunResponse
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.text import without_nul
from spawnmesh_session.operations.callers import calling_run_of
from spawnmesh_session.operations.message_sending import NewMessage
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import render_run


async def interrupt_run(
    request: InterruptRunRequest, caller: Caller, deps: Dependencies
) -> InterruptRunResponse:
    """End the live run at its next safe point, or let it go on with the text."""
    tenant_id, calling_run = caller.tenant_id, calling_run_of(caller)
    if not request.text:
        run = await deps.interrupter.interrupt(tenant_id, request.session_id, request.run_id, calling_run)
        return InterruptRunResponse(run=render_run(run) if run else None)
    message = _parse_message(request)
    sent = await deps.sender.send(tenant_id, request.session_id, calling_run, message)
    return InterruptRunResponse(run=render_run(sent))


def _parse_message(request: InterruptRunRequest) -> NewMessage:
    text = without_nul(request.text)
    if not text.strip():
        raise MeshError(Reason.INVALID_REQUEST, "text has nothing but white space; leave it away, or say it")
    if not request.request_id:
        raise MeshError(Reason.INVALID_REQUEST, "a text needs a request_id, so that a repeat is noticed")
    return NewMessage(request.request_id, text, is_urgent=True, run_id=request.run_id)
