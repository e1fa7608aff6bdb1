"""One stream of a session while it works, made of WatchSession and WatchTranscript.

`Session.live` has the same in views.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.session_pb2 import SessionEvent
from spawnmesh.transcript.v1 import live_service_pb2 as live_rpc
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_rpc
from spawnmesh.transcript.v1.live_service_pb2 import DraftDelta, DraftRetracted, EntryAppended
from spawnmesh.transcript.v1.live_service_pb2_grpc import LiveServiceStub
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_core.errors import MeshError, NotFound, invalid, unavailable

from spawnmesh_client.retry_policy import RetryPolicy
from spawnmesh_client.wire import WireMesh

T = TypeVar("T")

_WATCH_CALL_SECONDS = 3600.0
_RETRY_SECONDS = 60.0
_PAUSE_SECONDS = 1.0  # Between two looks for a transcript that is not there yet.
# From the beginning, the states that are there come before the entries. The streams have no order.
_STATES_FIRST_SECONDS = 0.25
_ALL_SEQS = 2**63 - 1
_CURSOR = re.compile(r"(\d{1,15})\.([\w-]*)(?:\.(\w+))?", re.ASCII)
_TERMINAL_KINDS = (session_pb2.SESSION_EVENT_KIND_CLOSED, session_pb2.SESSION_EVENT_KIND_SPAWN_FAILED)
_ENDED_STATES = (
    session_pb2.RUN_STATE_SUCCEEDED,
    session_pb2.RUN_STATE_FAILED,
    session_pb2.RUN_STATE_TIMED_OUT,
    session_pb2.RUN_STATE_KILLED,
    session_pb2.RUN_STATE_INTERRUPTED,
)


@dataclass(frozen=True, slots=True)
class LiveMessage:
    """A message of one of the two streams, and the cursor behind it."""

    cursor: str
    message: SessionEvent | DraftDelta | DraftRetracted | EntryAppended


def ends_run(event: SessionEvent) -> bool:
    """Return whether a run of the session has ended with the event."""
    # The event of a child's result has the state of the child's run.
    return event.kind == session_pb2.SESSION_EVENT_KIND_RUN and event.run_state in _ENDED_STATES


async def live_messages(
    wire: WireMesh, session_id: str, begin: "LivePosition | None" = None
) -> AsyncGenerator[LiveMessage, None]:
    """Yield the messages behind the position, by default from the first, under the rules of
    `Session.live`.
    """
    position = begin or LivePosition()
    has_news = asyncio.Event()
    steps = _session_steps(wire, session_id, position.event_cursor)
    answers = _transcript_answers(wire, session_id, position, has_news)
    held: _Step | None = None
    is_beginning = not position.transcript_cursor and not position.read_seq
    async with _reading(steps) as session, _reading(answers) as transcript:
        while True:
            if held is not None and position.read_seq >= held.after_seq:
                for message in position.take_event(held.event):
                    yield message
                if held.event is None or held.event.kind in _TERMINAL_KINDS:
                    return
                held = None
            awaited: set[asyncio.Task[object]] = set()
            if held is None:
                awaited.add(session.next)
            if position.read_seq < _ALL_SEQS and not (is_beginning and held is None):
                awaited.add(transcript.next)
            seconds = _STATES_FIRST_SECONDS if is_beginning else None
            done, _ = await asyncio.wait(awaited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                is_beginning = False
            elif held is None and session.next.done():
                held = session.take()
                has_news.set()
            elif (answer := transcript.take()) is None:
                position.read_seq = _ALL_SEQS
            else:
                for message in position.take_answer(answer):
                    yield message


@dataclass(frozen=True, slots=True)
class _Step:
    """An event, or the end of the events, that comes behind the entries up to a seq."""

    event: SessionEvent | None
    after_seq: int


async def _session_steps(wire: WireMesh, session_id: str, after_cursor: int) -> AsyncGenerator[_Step, None]:
    async with aclosing(wire.watch(session_id, after_cursor)) as events:
        async for event in events:
            is_closed = event.kind == session_pb2.SESSION_EVENT_KIND_CLOSED
            is_end = is_closed or ends_run(event)
            yield _Step(event, await _head_seq(wire, session_id) if is_end else 0)
            if event.kind in _TERMINAL_KINDS:
                return
    yield _Step(None, await _head_seq(wire, session_id))


async def _head_seq(wire: WireMesh, session_id: str) -> int:
    """Return the seq of the newest entry; 0 if the spawn failed. Raises NotFound."""
    peer = wire.service("transcript")
    stub = TranscriptServiceStub(peer.channel)
    request = transcript_rpc.ListEntriesRequest(session_id=session_id, before_seq=0, page_size=1)
    try:
        return (await _retried(lambda: peer.unary(stub.ListEntries, request))).head.seq
    except NotFound:
        if await _state(wire, session_id) == session_pb2.SESSION_STATE_SPAWN_FAILED:
            return 0
        raise


async def _transcript_answers(
    wire: WireMesh, session_id: str, position: "LivePosition", has_news: asyncio.Event
) -> AsyncGenerator[live_rpc.WatchTranscriptResponse, None]:
    """Yield the answers behind the position, and resume after a restart of the service.

    Wait for the transcript of a session that is being spawned: look again when `has_news` is set,
    and after a pause. End if the spawn has failed. Raises NotFound if the transcript was deleted.
    """
    peer = wire.service("transcript")
    stub = LiveServiceStub(peer.channel)
    retry = RetryPolicy(_RETRY_SECONDS)
    is_spawned = False
    cursor, after_seq = position.transcript_cursor, position.read_seq
    while True:
        request = live_rpc.WatchTranscriptRequest(session_id=session_id, cursor=cursor, after_seq=after_seq)
        answers = peer.stream(stub.WatchTranscript, request, timeout_seconds=_WATCH_CALL_SECONDS)
        has_news.clear()
        retry.begin_attempt()
        try:
            async with aclosing(answers):
                async for answer in answers:
                    retry.record_answer()
                    cursor = answer.cursor
                    yield answer
            raise unavailable("transcript")  # The stream has no end of its own.
        except NotFound as error:
            missing = error
        except MeshError as error:
            await retry.wait_before_next(error)
            continue
        state = await _state(wire, session_id)
        if state == session_pb2.SESSION_STATE_SPAWN_FAILED:
            return
        if state == session_pb2.SESSION_STATE_PROVISIONING:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_SECONDS):
                    await has_news.wait()
        elif cursor or is_spawned:
            raise missing
        else:  # It was spawned after the look, perhaps.
            is_spawned = True


async def _state(wire: WireMesh, session_id: str) -> "session_pb2.SessionState.ValueType":
    return (await _retried(lambda: wire.session(session_id))).state


async def _retried(call: Callable[[], Awaitable[T]]) -> T:
    retry = RetryPolicy(_RETRY_SECONDS)
    while True:
        retry.begin_attempt()
        try:
            return await call()
        except MeshError as error:
            await retry.wait_before_next(error)


@dataclass(slots=True)
class LivePosition:
    """A position in both streams, and the run whose draft is open. It moves with the streams."""

    event_cursor: int = 0
    read_seq: int = 0
    transcript_cursor: str = ""
    open_run_id: str = ""
    _ended_run_ids: set[str] = field(default_factory=set)

    @classmethod
    def parse(cls, cursor: str) -> "LivePosition":
        """Return the position of a cursor. Raises InvalidRequest."""
        if not cursor:
            return cls()
        if (parts := _CURSOR.fullmatch(cursor)) is None:
            raise invalid("after", "is no cursor of `live`")
        event_cursor, transcript_cursor, open_run_id = parts.groups()
        return cls(int(event_cursor), 0, transcript_cursor, open_run_id or "")

    def take_answer(self, answer: live_rpc.WatchTranscriptResponse) -> Iterator[LiveMessage]:
        """Go on behind the answer, and yield its message, if it has one that counts."""
        self.transcript_cursor, self.read_seq = answer.cursor, answer.read_seq
        match answer.WhichOneof("event"):
            case "draft_delta":
                delta = answer.draft_delta
                # The service may keep the draft of a run that has ended. It was retracted here.
                begins = delta.begins_draft and delta.run_id not in self._ended_run_ids
                if begins or (not delta.begins_draft and delta.run_id == self.open_run_id):
                    self.open_run_id = delta.run_id
                    yield self._message(delta)
            case "draft_retracted":
                yield from self._retract()
            case "entry_appended":
                appended = answer.entry_appended
                if appended.completes_draft:
                    appended.completes_draft, self.open_run_id = bool(self.open_run_id), ""
                yield self._message(appended)

    def take_event(self, event: SessionEvent | None) -> Iterator[LiveMessage]:
        """Go on behind the event, and yield it. None: there are no more events.

        All entries before it were taken, so none can complete the draft of a run that has ended.
        """
        is_over = event is None or event.kind in _TERMINAL_KINDS
        if is_over or (event is not None and ends_run(event) and event.run_id == self.open_run_id):
            yield from self._retract()
        if event is None:
            return
        if ends_run(event):
            self._ended_run_ids.add(event.run_id)
        self.event_cursor = event.cursor
        yield self._message(event)

    def _retract(self) -> Iterator[LiveMessage]:
        if self.open_run_id:
            retracted = DraftRetracted(run_id=self.open_run_id)
            self.open_run_id = ""
            yield self._message(retracted)

    def _message(self, message: SessionEvent | DraftDelta | DraftRetracted | EntryAppended) -> LiveMessage:
        open_run = f".{self.open_run_id}" if self.open_run_id else ""
        return LiveMessage(f"{self.event_cursor}.{self.transcript_cursor}{open_run}", message)


class _Reader(Generic[T]):
    """A stream that is read one item ahead, and no further."""

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self.next = asyncio.create_task(self._read())

    def take(self) -> T | None:
        """Return the item that was read; None at the end. Raises the exception of the stream."""
        item = self.next.result()
        if item is not None:
            self.next = asyncio.create_task(self._read())
        return item

    async def close(self) -> None:
        """End the stream."""
        self.next.cancel()
        await asyncio.gather(self.next, return_exceptions=True)
        await self._items.aclose()

    async def _read(self) -> T | None:
        return await anext(self._items, None)


@asynccontextmanager
async def _reading(items: AsyncGenerator[T, None]) -> AsyncIterator[_Reader[T]]:
    reader = _Reader(items)
    try:
        yield reader
    finally:
        await reader.close()
