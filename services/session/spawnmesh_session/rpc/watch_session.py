"""WatchSession.

Streams the session's events after a cursor, then new ones as they commit, each once and in order.
"""

from collections.abc import AsyncGenerator

from spawnmesh.session.v1 import session_pb2 as pb
from spawnmesh.session.v1.session_service_pb2 import WatchSessionRequest, WatchSessionResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.sessions import TERMINAL_EVENT_KINDS, TERMINAL_SESSION_STATES, SessionEvent
from spawnmesh_session.operations.callers import family_root_of
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import render_run_state, render_time
from spawnmesh_session.store import events, sessions

_POLL_SECONDS = 30.0  # A lost connection wakes all watchers; this is for a loss without a sign.


async def watch_session(
    request: WatchSessionRequest, caller: Caller, deps: Dependencies
) -> AsyncGenerator[WatchSessionResponse, None]:
    """Yield every event after the cursor once and in order; end after a terminal one, or after the
    newest one, if the request asks for that.
    """
    tenant_id, session_id, after_cursor = caller.tenant_id, request.session_id, request.after_cursor
    family_root = family_root_of(caller)
    payload = events.payload_of(tenant_id, session_id)
    with deps.listener.subscription(events.CHANNEL, payload) as changed:
        while True:
            async with (
                deps.watch_limit.hold(tenant_id),
                deps.database.transaction(tenant_id) as connection,
            ):
                session = await sessions.read_session(
                    connection, tenant_id, session_id, family_root=family_root
                )
                page = await events.list_events(connection, tenant_id, session_id, after_cursor)
            for event in page:
                after_cursor = event.cursor
                yield WatchSessionResponse(event=_render_event(event))
                if event.kind in TERMINAL_EVENT_KINDS:
                    return
            if not page:
                if session.state in TERMINAL_SESSION_STATES or request.ends_at_newest:
                    return
                await changed.wait(_POLL_SECONDS)


def _render_event(event: SessionEvent) -> pb.SessionEvent:
    return pb.SessionEvent(
        cursor=event.cursor,
        event_time=render_time(event.event_time),
        kind=pb.SessionEventKind.Value(f"SESSION_EVENT_KIND_{event.kind}"),
        run_id=event.run_id,
        run_state=render_run_state(event.run_state),
        child_session_id=event.child_session_id,
        detail=event.detail,
        set_id=event.set_id,
    )
