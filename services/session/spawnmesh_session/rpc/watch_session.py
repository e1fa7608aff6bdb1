"""WatchSession.

Streams what happens in a session and, on request, in the sessions below it, each once and in order.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from spawnmesh.session.v1 import session_pb2 as pb
from spawnmesh.session.v1.session_service_pb2 import WatchSessionRequest, WatchSessionResponse
from spawnmesh.transcript.v1.live_event_pb2 import DraftDelta, DraftRetracted, EntryAppended
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_core.errors import invalid
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.sessions import SessionEvent
from spawnmesh_session.domain.watch_positions import MemberPosition, WatchScope
from spawnmesh_session.operations.callers import family_root_of
from spawnmesh_session.operations.family_watch import FamilyWatch
from spawnmesh_session.operations.member_feed import Message
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import render_run_state
from spawnmesh_session.rpc.watch_cursor import parse_cursor, render_cursor


async def watch_session(
    request: WatchSessionRequest, caller: Caller, deps: Dependencies
) -> AsyncGenerator[WatchSessionResponse, None]:
    """Yield each message behind the cursor; end when the sessions have ended, or behind the newest
    one, if the request asks for that.
    """
    scope = WatchScope(request.session_id, request.with_transcript, request.with_descendants)
    watch = FamilyWatch(
        deps.watch_source,
        scope,
        caller.tenant_id,
        family_root=family_root_of(caller),
        ends_at_newest=request.ends_at_newest,
    )
    positions = _parse_positions(request, scope)
    async with aclosing(watch.messages(positions)) as messages:
        async for session_id, message in messages:
            cursor = render_cursor(scope, watch.positions)
            yield _render(WatchSessionResponse(cursor=cursor, session_id=session_id), message)


def _parse_positions(request: WatchSessionRequest, scope: WatchScope) -> dict[str, MemberPosition]:
    for name, value in (("after_event", request.after_event), ("after_seq", request.after_seq)):
        if value and (request.cursor or scope.with_descendants):
            raise invalid(name, "is possible without a cursor and without descendants only")
    if request.cursor:
        return parse_cursor(request.cursor, scope)
    return {scope.session_id: MemberPosition(request.after_event, after_seq=request.after_seq)}


def _render(response: WatchSessionResponse, message: Message) -> WatchSessionResponse:
    match message:
        case SessionEvent():
            response.session_event.CopyFrom(_render_event(message))
        case EntryAppended():
            response.entry_appended.CopyFrom(message)
        case DraftDelta():
            response.draft_delta.CopyFrom(message)
        case DraftRetracted():
            response.draft_retracted.CopyFrom(message)
    return response


def _render_event(event: SessionEvent) -> pb.SessionEvent:
    return pb.SessionEvent(
        number=event.number,
        event_time=timestamp_of(event.event_time),
        kind=pb.SessionEventKind.Value(f"SESSION_EVENT_KIND_{event.kind}"),
        run_id=event.run_id,
        run_state=render_run_state(event.run_state),
        child_session_id=event.child_session_id,
        detail=event.detail,
        set_id=event.set_id,
    )
