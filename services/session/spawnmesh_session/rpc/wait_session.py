"""WaitSession.

Returns when the session's newest run has ended, when the session is terminal, or when `timeout` is
over. `done` says whether it was the time-out.
"""

import asyncio

from spawnmesh.session.v1.session_service_pb2 import WaitSessionRequest, WaitSessionResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.operations.callers import family_root_of
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_seconds, render_session
from spawnmesh_session.store import events, sessions

_DEFAULT_TIMEOUT_SECONDS = 30.0
_POLL_SECONDS = 30.0  # A lost connection wakes all waiters; this is for a loss without a sign.


async def wait_session(
    request: WaitSessionRequest, caller: Caller, deps: Dependencies
) -> WaitSessionResponse:
    """Wait until the session is done or the timeout is over; return the session as it is then."""
    timeout = request.timeout if request.HasField("timeout") else None
    loop = asyncio.get_running_loop()
    give_up = loop.time() + parse_seconds(timeout, _DEFAULT_TIMEOUT_SECONDS)
    payload = events.done_payload_of(caller.tenant_id, request.session_id)
    with deps.listener.subscription(events.CHANNEL, payload) as changed:
        while True:
            async with deps.watch_limit.hold(caller.tenant_id):
                session = await sessions.get_session(
                    deps.database, caller.tenant_id, request.session_id, family_root=family_root_of(caller)
                )
            left = give_up - loop.time()
            if session.is_done or left <= 0:
                return WaitSessionResponse(session=render_session(session), done=session.is_done)
            await changed.wait(min(left, _POLL_SECONDS))
