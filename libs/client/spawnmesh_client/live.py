"""A session while it works: its states, its entries, and answers while models give them."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.session_service_pb2 import WatchSessionRequest, WatchSessionResponse

from spawnmesh_client.entries import entry_view
from spawnmesh_client.view_of import view_of
from spawnmesh_client.views import Entry, SessionEvent
from spawnmesh_client.wire import WireMesh

_ENDED_STATES = (
    session_pb2.RUN_STATE_SUCCEEDED,
    session_pb2.RUN_STATE_FAILED,
    session_pb2.RUN_STATE_TIMED_OUT,
    session_pb2.RUN_STATE_KILLED,
    session_pb2.RUN_STATE_INTERRUPTED,
)


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """An event in the life of the session, such as a new state of a run."""

    cursor: str
    session_id: str
    event: SessionEvent


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text of the answer that a model is giving, behind the earlier text of this draft.

    `model` is empty if the text comes from the stored answer.
    """

    cursor: str
    session_id: str
    run_id: str
    model: str
    text: str
    begins_draft: bool


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """Thinking of the model, behind the earlier thinking of this draft. The rest is as in
    TextDelta.
    """

    cursor: str
    session_id: str
    run_id: str
    model: str
    thinking: str
    begins_draft: bool


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A part of a tool call of the draft. The rest is as in TextDelta.

    `arguments` is JSON text to append to the earlier parts of the newest call; with `begins_call`
    the call is a new one. The call is made only when the entry has come.
    """

    cursor: str
    session_id: str
    run_id: str
    model: str
    tool_call_id: str
    name: str
    arguments: str
    begins_call: bool
    begins_draft: bool


@dataclass(frozen=True, slots=True)
class DraftRetracted:
    """The deltas since the last `begins_draft` do not count. Take them back."""

    cursor: str
    session_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class EntryAppended:
    """An entry of the transcript.

    With `completes_draft`, it is the answer whose deltas came before: its blocks of text, one
    behind the other, are exactly that, and so are its thinking and its tool calls. `Entry.text` has
    the blocks of text on lines of their own.
    """

    cursor: str
    session_id: str
    entry: Entry
    completes_draft: bool


LiveEvent = SessionChanged | TextDelta | ThinkingDelta | ToolCallDelta | DraftRetracted | EntryAppended
"""An event of `Session.live`. `session_id` says in which session it happened, and `cursor` is the
position behind it, as text without a meaning.
"""


async def live_events(
    wire: WireMesh,
    session_id: str,
    after: str = "",
    *,
    after_event: int = 0,
    after_seq: int = 0,
    with_descendants: bool = False,
) -> AsyncGenerator[LiveEvent, None]:
    """Yield the views of what happens in the session, under the rules of `Session.live`."""
    request = WatchSessionRequest(
        session_id=session_id,
        cursor=after,
        after_event=after_event,
        after_seq=after_seq,
        with_transcript=True,
        with_descendants=with_descendants,
    )
    async with aclosing(wire.watch(request)) as messages:
        async for message in messages:
            if (event := _live_event(message)) is not None:
                yield event


async def session_events(
    wire: WireMesh, session_id: str, after: int, *, ends_at_newest: bool = False
) -> AsyncGenerator[SessionEvent, None]:
    """Yield the views of the session's events, under the rules of `Session.events`."""
    request = WatchSessionRequest(session_id=session_id, after_event=after, ends_at_newest=ends_at_newest)
    async with aclosing(wire.watch(request)) as messages:
        async for message in messages:
            if message.HasField("session_event"):
                yield view_of(SessionEvent, message.session_event)


def ends_run(event: session_pb2.SessionEvent) -> bool:
    """Return whether a run of the session has ended with the event."""
    # The event of a child's result has the state of the child's run.
    return event.kind == session_pb2.SESSION_EVENT_KIND_RUN and event.run_state in _ENDED_STATES


def _live_event(message: WatchSessionResponse) -> LiveEvent | None:
    """Return the view of a message; None for a kind that a newer service sends."""
    where = (message.cursor, message.session_id)
    match message.WhichOneof("event"):
        case "session_event":
            return SessionChanged(*where, view_of(SessionEvent, message.session_event))
        case "draft_delta":
            return _delta(message)
        case "draft_retracted":
            return DraftRetracted(*where, message.draft_retracted.run_id)
        case "entry_appended":
            appended = message.entry_appended
            return EntryAppended(*where, entry_view(appended.entry), appended.completes_draft)
        case _:
            return None


def _delta(message: WatchSessionResponse) -> TextDelta | ThinkingDelta | ToolCallDelta | None:
    delta = message.draft_delta
    where: dict[str, Any] = {"cursor": message.cursor, "session_id": message.session_id}
    match delta.WhichOneof("delta"):
        case "text":
            return view_of(TextDelta, delta, **where)
        case "thinking":
            return view_of(ThinkingDelta, delta, **where)
        case "tool_call":
            draft = {"run_id": delta.run_id, "model": delta.model, "begins_draft": delta.begins_draft}
            return view_of(ToolCallDelta, delta.tool_call, **where, **draft)
        case _:
            return None
