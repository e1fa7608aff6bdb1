"""WatchTranscript of a transcript service in the test's own process."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, ContentBlock, Message, Role, Text, ToolCall
from spawnmesh.session.v1 import session_pb2
from spawnmesh.transcript.v1 import live_service_pb2 as pb
from spawnmesh.transcript.v1.entry_pb2 import Entry, EntryBody
from spawnmesh.transcript.v1.live_service_pb2_grpc import LiveServiceServicer
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id

RUN_ID = new_id(IdKind.RUN)


@dataclass
class FakeLive(LiveServiceServicer):
    """Stream the responses that the test has given, and those that it gives later.

    Each refusal of `refusals` answers one call. `broken_after` ends a stream once, behind so many
    responses. `open_count` is the number of streams.
    """

    refusals: list[MeshError] = field(default_factory=list)
    broken_after: dict[int, MeshError] = field(default_factory=dict)
    cursors: list[str] = field(default_factory=list)
    open_count: int = 0
    sent_count: int = 0
    _responses: list[pb.WatchTranscriptResponse] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _seq: int = 0
    _read_seq: int = 0

    async def WatchTranscript(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.cursors.append(request.cursor)
        if self.refusals:
            raise self.refusals.pop(0)
        place = int(request.cursor or 0)
        self.open_count += 1
        try:
            read_seq = self._responses[place - 1].read_seq if place else 0
            yield pb.WatchTranscriptResponse(cursor=str(place), read_seq=read_seq)
            while True:
                changed = self._changed
                for response in self._responses[place:]:
                    place += 1
                    self.sent_count += 1
                    yield response
                    if place in self.broken_after:
                        raise self.broken_after.pop(place)
                await changed.wait()
        finally:
            self.open_count -= 1

    def speak(self, text: str, *, begins: bool = False, run_id: str = RUN_ID) -> None:
        """Add text to the draft."""
        delta = pb.DraftDelta(run_id=run_id, model="p/m", text=text, begins_draft=begins)
        self._add(pb.WatchTranscriptResponse(draft_delta=delta))

    def retract(self) -> None:
        """End the draft without an entry."""
        self._add(pb.WatchTranscriptResponse(draft_retracted=pb.DraftRetracted(run_id=RUN_ID)))

    def append(self, body: EntryBody, *, completes: bool = False) -> Entry:
        """Append an entry, send it to the watchers, and return it."""
        entry = self.entry(body)
        self.send(entry, completes=completes)
        return entry

    def entry(self, body: EntryBody) -> Entry:
        """Return the next entry. No watcher gets it yet."""
        self._seq += 1
        return Entry(seq=self._seq, entry_id=new_id(IdKind.ENTRY), body=body)

    def send(self, entry: Entry, *, completes: bool = False) -> None:
        """Send an entry to the watchers."""
        appended = pb.EntryAppended(entry=entry, completes_draft=completes)
        self._read_seq = entry.seq
        self._add(pb.WatchTranscriptResponse(entry_appended=appended))

    def _add(self, response: pb.WatchTranscriptResponse) -> None:
        response.cursor, response.read_seq = str(len(self._responses) + 1), self._read_seq
        self._responses.append(response)
        self._changed.set()
        self._changed = asyncio.Event()


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


def run_event(cursor: int, state: Any, run_id: str = RUN_ID) -> session_pb2.SessionEvent:
    """Return the event of a run that reaches the state."""
    kind = session_pb2.SESSION_EVENT_KIND_RUN
    return session_pb2.SessionEvent(cursor=cursor, kind=kind, run_id=run_id, run_state=state)
