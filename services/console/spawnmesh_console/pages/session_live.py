"""`/sessions/{session_id}/live`: what happens in a session, as server-sent events.

The id of an event is a cursor. A browser that lost its connection sends it back, and gets what
follows: nothing twice, and nothing missing.
"""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing

import structlog
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.session_service_pb2 import WatchSessionRequest, WatchSessionResponse
from spawnmesh.transcript.v1.live_event_pb2 import DraftDelta, EntryAppended
from spawnmesh_client.view_of import view_of
from spawnmesh_client.views import SessionEvent
from spawnmesh_core.errors import MeshError
from spawnmesh_core.status import Status
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from spawnmesh_console.clients.shown_entry import mark_of, shown_entry
from spawnmesh_console.domain.shown_entries import LAID_OUT_CHARS
from spawnmesh_console.domain.shown_text import harmless
from spawnmesh_console.pages.session import event_sentence_of, head_values
from spawnmesh_console.web.visit import Visit

log = structlog.get_logger()

_PING_SECONDS = 15
_SEND_SECONDS = 60.0  # A browser that takes nothing for so long is gone.
_ENDING = {
    Status.NOT_FOUND: "gone",
    Status.UNAUTHENTICATED: "reload",
    Status.PERMISSION_DENIED: "reload",
    Status.INVALID_ARGUMENT: "reload",
}
"""The last event of a stream that no repeat can continue.

`reload` leads to the sign-in, or to a new cursor.
"""


async def stream_session(visit: Visit) -> Response:
    """Stream events, parts of entries and entries behind a cursor, or behind an event and a seq."""
    session_id = visit.path_part("session_id")
    await visit.mesh.session(session_id)  # A refusal has a status of its own before the stream begins.
    # A browser that connects by itself sends the header; the page, which connects anew, the other.
    cursor = visit.request.headers.get("last-event-id", "") or visit.text("cursor")
    watched = WatchSessionRequest(
        session_id=session_id,
        cursor=cursor,
        after_event=0 if cursor else visit.number("after_event"),
        after_seq=0 if cursor else visit.number("after_seq"),
        with_transcript=True,
    )
    events = _events(visit, watched)
    return EventSourceResponse(events, ping=_PING_SECONDS, send_timeout=_SEND_SECONDS)


async def _events(visit: Visit, watched: WatchSessionRequest) -> AsyncIterator[ServerSentEvent]:
    session_id = watched.session_id
    try:
        yield ServerSentEvent(event="head", data=await _head(visit, session_id))
        async with aclosing(visit.mesh.wire.watch(watched)) as messages:
            async for message in messages:
                if (event := await _event(visit, message)) is not None:
                    yield event
        yield ServerSentEvent(event="head", data=await _head(visit, session_id))
        yield ServerSentEvent(event="end", data="")
    except MeshError as error:
        if error.status in _ENDING:
            yield ServerSentEvent(event=_ENDING[error.status], data="")
        else:  # The browser connects again by itself.
            log.info("live_stream_ended", reason=error.reason.value)


async def _event(visit: Visit, message: WatchSessionResponse) -> ServerSentEvent | None:
    """Return the event of a message; None for a kind that a newer service sends."""
    cursor, session_id = message.cursor, message.session_id
    match message.WhichOneof("event"):
        case "session_event":
            head = await _head(visit, session_id, message.session_event)
            return ServerSentEvent(event="head", id=cursor, data=head)
        case "draft_delta":
            data = json.dumps(_delta_values(message.draft_delta))
            return ServerSentEvent(event="delta", id=cursor, data=data)
        case "draft_retracted":
            return ServerSentEvent(event="retracted", id=cursor, data="")
        case "entry_appended":
            return _entry_event(visit, session_id, cursor, message.entry_appended)
        case _:
            return None


def _delta_values(delta: DraftDelta) -> dict[str, object]:
    """Return what the page appends: text to the newest output of the kind, or to a new one."""
    call = delta.tool_call
    return {
        "begins": delta.begins_draft,
        "model": harmless(delta.model),
        "kind": delta.WhichOneof("delta") or "text",
        "text": harmless(delta.text or delta.thinking or call.arguments),
        "call": harmless(call.name),
        "beginsCall": call.begins_call,
    }


def _entry_event(visit: Visit, session_id: str, cursor: str, appended: EntryAppended) -> ServerSentEvent:
    if (mark := mark_of(appended.entry)) is not None:
        html = visit.deps.templates.get_template("session_mark.html").render(mark=mark.mark)
        data = json.dumps({"entry": mark.entry_id, "mark": mark.mark.value, "html": html})
        return ServerSentEvent(event="mark", id=cursor, data=data)
    entry = shown_entry(appended.entry, LAID_OUT_CHARS)
    template = visit.deps.templates.get_template("session_entry.html")
    html = "" if entry is None else template.render(entry=entry, session_id=session_id)
    data = json.dumps({"completes": appended.completes_draft, "html": html})
    return ServerSentEvent(event="entry", id=cursor, data=data)


async def _head(visit: Visit, session_id: str, event: session_pb2.SessionEvent | None = None) -> str:
    """Return the head of the page as it is now, the line of the event, and whether its list of
    published files has grown.
    """
    templates, values = visit.deps.templates, head_values(await visit.mesh.session(session_id))
    html = templates.get_template("session_head.html").render(person=visit.person, **values)
    told: dict[str, str | bool] = {"html": html}
    if event is not None:
        shown = event_sentence_of(view_of(SessionEvent, event))
        line = templates.get_template("session_event.html").render(event=shown, session_id=session_id)
        told |= {"event": line, "published": bool(shown.set_id)}
    return json.dumps(told)
