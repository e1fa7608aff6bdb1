"""WatchSession of a mesh in memory."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, ContentBlock
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.session_service_pb2 import WatchSessionRequest, WatchSessionResponse
from spawnmesh.transcript.v1.entry_pb2 import Entry
from spawnmesh.transcript.v1.live_event_pb2 import DraftDelta, EntryAppended, ToolCallPiece
from spawnmesh_core.call_blocks import arguments_in
from spawnmesh_core.errors import MeshError, invalid
from spawnmesh_core.status import Status

from spawnmesh_client.fake_records import SessionRecord
from spawnmesh_client.live import ends_run

_POLL_SECONDS = 0.01
_TERMINAL = (session_pb2.SESSION_EVENT_KIND_CLOSED, session_pb2.SESSION_EVENT_KIND_SPAWN_FAILED)
_MEMBER = re.compile(r"(ses_\w+)\.(\d{1,18})\.(\d{1,18})\.(\d{1,18})", re.ASCII)


@dataclass(slots=True)
class _Position:
    """The number of the last event, the seq of the last entry, and the number of deltas of the next
    answer that were sent.
    """

    number: int = 0
    seq: int = 0
    delta_count: int = 0


class WatchedFamily:
    """One call of WatchSession. `look` returns the record of a session, and raises NOT_FOUND."""

    def __init__(self, request: WatchSessionRequest, look: Callable[[str], SessionRecord]) -> None:
        self._request, self._look = request, look
        self._scope = f"{request.session_id}~{request.with_transcript:d}{request.with_descendants:d}"
        self._positions = self._parse()

    async def messages(self) -> AsyncIterator[WatchSessionResponse]:
        """Yield what is behind the cursor. Each text of an answer comes in two deltas before it."""
        self._look(self._request.session_id)
        while self._positions:
            looked_at = list(self._positions)
            for session_id in looked_at:
                for message in self._of(session_id):
                    message.cursor, message.session_id = self._cursor, session_id
                    yield message
            if self._positions.keys() <= set(looked_at):  # There is no new child.
                if self._request.ends_at_newest:
                    return
                await asyncio.sleep(_POLL_SECONDS)

    def _of(self, session_id: str) -> Iterator[WatchSessionResponse]:
        """Yield what is new in the session: the end of a run behind all entries."""
        position = self._positions[session_id]
        try:
            record = self._look(session_id)
        except MeshError as error:
            if error.status is not Status.NOT_FOUND or session_id == self._request.session_id:
                raise
            del self._positions[session_id]
            return
        new = _up_to_terminal(record.events[position.number :])
        end = next((place for place, event in enumerate(new) if _is_end(event)), len(new))
        yield from self._events(position, new[:end])
        if self._request.with_transcript:
            yield from self._entries(position, record)
        yield from self._events(position, new[end:])
        is_read = record.is_terminal and position.number >= len(record.events)
        if new[-1].kind in _TERMINAL if new else is_read:
            del self._positions[session_id]

    def _events(
        self, position: _Position, events: list[session_pb2.SessionEvent]
    ) -> Iterator[WatchSessionResponse]:
        for event in events:
            position.number = event.number
            if event.kind == session_pb2.SESSION_EVENT_KIND_CHILD_SPAWNED and self._request.with_descendants:
                self._positions[event.child_session_id] = _Position()
            yield WatchSessionResponse(session_event=event)

    @staticmethod
    def _entries(position: _Position, record: SessionRecord) -> Iterator[WatchSessionResponse]:
        for entry in record.entries[position.seq :]:
            deltas = _deltas(entry)
            for delta in deltas[position.delta_count :]:
                position.delta_count += 1
                yield WatchSessionResponse(draft_delta=delta)
            position.seq, position.delta_count = entry.seq, 0
            appended = EntryAppended(entry=entry, completes_draft=bool(deltas))
            yield WatchSessionResponse(entry_appended=appended)

    @property
    def _cursor(self) -> str:
        members = [
            f"{session_id}.{one.number}.{one.seq}.{one.delta_count}"
            for session_id, one in self._positions.items()
        ]
        return "~".join([self._scope, *members])

    def _parse(self) -> dict[str, _Position]:
        request = self._request
        for name, value in (("after_event", request.after_event), ("after_seq", request.after_seq)):
            if value and (request.cursor or request.with_descendants):
                raise invalid(name, "is possible without a cursor and without descendants only")
        if not request.cursor:
            return {request.session_id: _Position(request.after_event, request.after_seq)}
        beginning = f"{self._scope}~"
        members = [_MEMBER.fullmatch(one) for one in request.cursor.removeprefix(beginning).split("~")]
        if not request.cursor.startswith(beginning) or None in members:
            raise invalid("cursor", f"is no cursor of a watch like this one of {request.session_id}")
        return {one[1]: _Position(int(one[2]), int(one[3]), int(one[4])) for one in members if one}


def _up_to_terminal(events: list[session_pb2.SessionEvent]) -> list[session_pb2.SessionEvent]:
    """Return the events up to a terminal one: a budget can still be changed behind it."""
    places = (place for place, event in enumerate(events, 1) if event.kind in _TERMINAL)
    return events[: next(places, len(events))]


def _is_end(event: session_pb2.SessionEvent) -> bool:
    return ends_run(event) or event.kind in _TERMINAL


def _deltas(entry: Entry) -> list[DraftDelta]:
    """Return the deltas of an answer of a run; none for any other entry."""
    message = entry.body.message
    if not entry.writer.run_id or message.role != ROLE_ASSISTANT:
        return []
    deltas = [delta for block in message.content for delta in _parts(block)]
    for place, delta in enumerate(deltas):
        delta.run_id, delta.begins_draft = entry.writer.run_id, place == 0
    return deltas


def _parts(block: ContentBlock) -> Iterator[DraftDelta]:
    text, middle = block.text.text, (len(block.text.text) + 1) // 2
    for half in (text[:middle], text[middle:]):
        if half:
            yield DraftDelta(text=half)
    if block.thinking.text:
        yield DraftDelta(thinking=block.thinking.text)
    if block.HasField("tool_call"):
        call = block.tool_call
        arguments = arguments_in(call.tool_call_id, call.name, call.block_json)
        part = ToolCallPiece(tool_call_id=call.tool_call_id, name=call.name, arguments=arguments)
        part.begins_call = True
        yield DraftDelta(tool_call=part)
