"""WatchSession of a session service in the test's own process."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, ContentBlock, Message, Role, Text, ToolCall
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.session_service_pb2 import WatchSessionRequest, WatchSessionResponse
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceServicer
from spawnmesh.transcript.v1 import live_event_pb2 as pb
from spawnmesh.transcript.v1.entry_pb2 import Entry, EntryBody
from spawnmesh_client.live import ends_run
from spawnmesh_core.errors import MeshError, invalid
from spawnmesh_core.ids import IdKind, new_id

RUN_ID = new_id(IdKind.RUN)
_TERMINAL = (session_pb2.SESSION_EVENT_KIND_CLOSED, session_pb2.SESSION_EVENT_KIND_SPAWN_FAILED)
_CURSOR = re.compile(r"(\d{1,9})\.(\d{1,9})", re.ASCII)


@dataclass
class FakeLive:
    """The messages of transcripts, and of the sessions below the one that is watched.

    Each refusal of `refusals` answers one watch of them. `broken_after` ends a stream once, behind
    so many messages. A message without a session is about the one that is watched.
    """

    refusals: list[MeshError] = field(default_factory=list)
    broken_after: dict[int, MeshError] = field(default_factory=dict)
    messages: list[WatchSessionResponse] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _seqs: dict[str, int] = field(default_factory=dict)

    def speak(self, text: str, *, begins: bool = False, run_id: str = RUN_ID, session_id: str = "") -> None:
        """Add text to the draft."""
        self._grow(pb.DraftDelta(run_id=run_id, text=text, begins_draft=begins), session_id)

    def think(self, thinking: str, *, begins: bool = False, session_id: str = "") -> None:
        """Add thinking to the draft."""
        self._grow(pb.DraftDelta(run_id=RUN_ID, thinking=thinking, begins_draft=begins), session_id)

    def call(
        self, call_id: str, name: str, arguments: str, *, begins: bool = False, session_id: str = ""
    ) -> None:
        """Add a part of a tool call to the draft."""
        part = pb.ToolCallPiece(tool_call_id=call_id, name=name, arguments=arguments, begins_call=begins)
        self._grow(pb.DraftDelta(run_id=RUN_ID, tool_call=part), session_id)

    def _grow(self, delta: pb.DraftDelta, session_id: str) -> None:
        delta.model = "p/m"
        self.add(WatchSessionResponse(session_id=session_id, draft_delta=delta))

    def retract(self, session_id: str = "") -> None:
        """End the draft without an entry."""
        retracted = pb.DraftRetracted(run_id=RUN_ID)
        self.add(WatchSessionResponse(session_id=session_id, draft_retracted=retracted))

    def append(self, body: EntryBody, *, completes: bool = False, session_id: str = "") -> Entry:
        """Append an entry, send it to the watchers, and return it."""
        entry = self.entry(body, session_id)
        self.send(entry, completes=completes, session_id=session_id)
        return entry

    def entry(self, body: EntryBody, session_id: str = "") -> Entry:
        """Return the next entry. No watcher gets it yet."""
        self._seqs[session_id] = self._seqs.get(session_id, 0) + 1
        return Entry(seq=self._seqs[session_id], entry_id=new_id(IdKind.ENTRY), body=body)

    def send(self, entry: Entry, *, completes: bool = False, session_id: str = "") -> None:
        """Send an entry to the watchers."""
        appended = pb.EntryAppended(entry=entry, completes_draft=completes)
        self.add(WatchSessionResponse(session_id=session_id, entry_appended=appended))

    def happen(self, event: session_pb2.SessionEvent, session_id: str = "") -> None:
        """Send an event to the watchers, behind the messages before it."""
        self.add(WatchSessionResponse(session_id=session_id, session_event=event))

    def add(self, message: WatchSessionResponse) -> None:
        """Send a message to the watchers."""
        self.messages.append(message)
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass
class FakeWatch(SessionServiceServicer):
    """Stream `events`, and the messages of `live` to those who watch transcripts.

    The messages come before the first event that ends a run or the session. The stream ends behind
    what is there, unless there is a `hold` that is not set: messages that are added come, too.
    `broken_after` ends a stream once, behind the event with that number. `open_count` is the number
    of streams, and `cursors` are those with which they began.
    """

    events: list[session_pb2.SessionEvent] = field(default_factory=list)
    live: FakeLive = field(default_factory=FakeLive)
    broken_after: dict[int, MeshError] = field(default_factory=dict)
    hold: asyncio.Event | None = None
    open_count: int = 0
    cursors: list[str] = field(default_factory=list)

    async def WatchSession(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.cursors.append(request.cursor)
        if request.with_transcript and self.live.refusals:
            raise self.live.refusals.pop(0)
        stream = _Stream(self, request)
        self.open_count += 1
        try:
            while True:
                changed = self.live.changed
                async for message in stream.rest():
                    yield message
                if self.hold is None or self.hold.is_set():
                    return
                await _first_of(self.hold, changed)
        finally:
            self.open_count -= 1


class _Stream:
    """One call: how many events and messages it has sent, or has left out."""

    def __init__(self, watch: FakeWatch, request: WatchSessionRequest) -> None:
        self._watch, self._request = watch, request
        self._events = sum(event.number <= request.after_event for event in watch.events)
        self._messages = self._behind(request.after_seq)
        if request.cursor:
            found = _CURSOR.fullmatch(request.cursor)
            if found is None:
                what = f"is no cursor of a watch like this one of {request.session_id}"
                raise invalid("cursor", what)
            self._events, self._messages = int(found[1]), int(found[2])

    async def rest(self) -> AsyncIterator[WatchSessionResponse]:
        """Yield what is there and was not sent."""
        events, live = self._watch.events, self._watch.live
        end = next((place for place, event in enumerate(events) if _is_end(event)), len(events))
        if self._request.with_transcript:
            while self._events < end:
                yield self._next_event()
                self._break(self._watch.broken_after, events[self._events - 1].number)
            while self._messages < len(live.messages):
                message = live.messages[self._messages]
                self._messages += 1
                if self._is_wanted(message):
                    yield self._placed(message)
                    self._break(live.broken_after, self._messages)
        while self._events < len(events):
            yield self._next_event()
            self._break(self._watch.broken_after, events[self._events - 1].number)

    def _next_event(self) -> WatchSessionResponse:
        event = self._watch.events[self._events]
        self._events += 1
        return self._placed(WatchSessionResponse(session_event=event))

    def _behind(self, seq: int) -> int:
        """Return the number of messages up to the entry, or up to the one before it."""
        seqs = [message.entry_appended.entry.seq for message in self._watch.live.messages]
        return max((place for place, one in enumerate(seqs, 1) if 0 < one <= seq), default=0)

    def _is_wanted(self, message: WatchSessionResponse) -> bool:
        is_below = message.session_id not in ("", self._request.session_id)
        return self._request.with_descendants or not is_below

    def _placed(self, message: WatchSessionResponse) -> WatchSessionResponse:
        placed = WatchSessionResponse()
        placed.CopyFrom(message)
        placed.cursor = f"{self._events}.{self._messages}"
        placed.session_id = message.session_id or self._request.session_id
        return placed

    @staticmethod
    def _break(after: dict[int, MeshError], count: int) -> None:
        if count in after:
            raise after.pop(count)


def _is_end(event: session_pb2.SessionEvent) -> bool:
    return ends_run(event) or event.kind in _TERMINAL


async def _first_of(*happenings: asyncio.Event) -> None:
    """Wait until one of them is set."""
    waits = [asyncio.create_task(one.wait()) for one in happenings]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def said(
    text: str, *calls: tuple[str, str], role: Role.ValueType = ROLE_ASSISTANT, **fields: Any
) -> EntryBody:
    """Return a message of one text, and calls of tools by their names and blocks in JSON."""
    blocks = [ContentBlock(text=Text(text=text))] if text else []
    blocks += [
        ContentBlock(tool_call=ToolCall(tool_call_id=str(place), name=name, block_json=block))
        for place, (name, block) in enumerate(calls)
    ]
    return EntryBody(message=Message(role=role, content=blocks, **fields))


def run_event(number: int, state: Any, run_id: str = RUN_ID) -> session_pb2.SessionEvent:
    """Return the event of a run that reaches the state."""
    kind = session_pb2.SESSION_EVENT_KIND_RUN
    return session_pb2.SessionEvent(number=number, kind=kind, run_id=run_id, run_state=state)


def spawned_event(number: int, child_id: str, agent_id: str) -> session_pb2.SessionEvent:
    """Return the event of the spawn of a child."""
    kind = session_pb2.SESSION_EVENT_KIND_CHILD_SPAWNED
    return session_pb2.SessionEvent(number=number, kind=kind, child_session_id=child_id, detail=agent_id)
