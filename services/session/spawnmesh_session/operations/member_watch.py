"""One session of a watch: its events and its transcript in one stream."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from spawnmesh.transcript.v1.live_service_pb2 import WatchTranscriptResponse
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.listener import Listener
from spawnmesh_runtime.limiter import FairLimiter

from spawnmesh_session.clients.transcript_watches import TranscriptWatches
from spawnmesh_session.domain.sessions import (
    TERMINAL_EVENT_KINDS,
    TERMINAL_SESSION_STATES,
    EventKind,
    SessionEvent,
    SessionState,
)
from spawnmesh_session.domain.watch_positions import MemberPosition
from spawnmesh_session.operations.member_feed import MemberFeed, Step, ends_run
from spawnmesh_session.operations.read_ahead import ReadAhead
from spawnmesh_session.store import events, sessions

_POLL_SECONDS = 30.0  # A lost connection wakes all watchers; this is for a loss without a sign.


@dataclass(frozen=True, slots=True)
class WatchSource:
    """The parts that watches read. `limit` bounds their reads of the database, by tenants."""

    database: Database
    listener: Listener
    limit: FairLimiter
    transcripts: TranscriptWatches


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events, and the state of the session with them. `is_last` if no events will follow."""

    events: list[SessionEvent]
    state: SessionState
    is_last: bool


@dataclass(frozen=True, slots=True)
class MemberWatch:
    """A session, what of it is streamed, and from where on."""

    source: WatchSource
    tenant_id: str
    session_id: str
    position: MemberPosition
    with_transcript: bool
    ends_at_newest: bool = False
    family_root: str = ""

    async def steps(self) -> AsyncGenerator[Step, None]:
        """Yield each message behind the position, until the session has ended.

        Raise NOT_FOUND when it is deleted or is outside the family of `family_root`, and
        DEPENDENCY_UNAVAILABLE if the transcript service does not answer.
        """
        steps = _Merge(self).steps() if self.with_transcript else self._event_steps()
        async with aclosing(steps):
            async for step in steps:
                yield step

    async def _event_steps(self) -> AsyncGenerator[Step, None]:
        feed = MemberFeed(self.position)
        async with aclosing(self.pages()) as pages:
            async for page in pages:
                for event in page.events:
                    for step in feed.take_event(event):
                        yield step

    async def pages(self) -> AsyncGenerator[EventPage, None]:
        """Yield the events behind the position as they come, and an empty page each time that all
        were read.
        """
        after, tenant_id, session_id = self.position.event_number, self.tenant_id, self.session_id
        payload = events.payload_of(tenant_id, session_id)
        with self.source.listener.subscription(events.CHANNEL, payload) as changed:
            while True:
                async with (
                    self.source.limit.hold(tenant_id),
                    self.source.database.transaction(tenant_id) as connection,
                ):
                    session = await sessions.read_session(
                        connection, tenant_id, session_id, family_root=self.family_root
                    )
                    found = await events.list_events(connection, tenant_id, session_id, after)
                shown = _up_to_terminal(found)
                is_last = shown[-1].kind in TERMINAL_EVENT_KINDS if shown else self._ends(session.state)
                yield EventPage(shown, session.state, is_last)
                if is_last:
                    return
                if shown:
                    after = shown[-1].number
                else:
                    await changed.wait(_POLL_SECONDS)

    def _ends(self, state: SessionState) -> bool:
        """Return whether the stream ends behind the newest event."""
        return self.ends_at_newest or state in TERMINAL_SESSION_STATES


class _Merge:
    """Send events at once, but the end of a run, and of the session, behind the entries before it.

    From the beginning, the events that are there come before the transcript.
    """

    def __init__(self, watch: MemberWatch) -> None:
        self._watch = watch
        self._feed = MemberFeed(watch.position)
        self._pages = ReadAhead(watch.pages())
        self._pages.begin()
        self._is_spawned = False
        self._transcript: ReadAhead[WatchTranscriptResponse] | None = None
        self._page = EventPage([], SessionState.PROVISIONING, is_last=False)
        self._events: deque[SessionEvent] = deque()  # Of the page, those that were not sent.
        self._head_seq = -1  # That of the transcript behind the events of the page. -1: not read.

    async def steps(self) -> AsyncGenerator[Step, None]:
        """Yield the messages, and close the streams at the end."""
        try:
            while True:
                while self._events and await self._is_due(self._events[0]):
                    for step in self._feed.take_event(self._events.popleft()):
                        yield step
                if self._page.is_last and not self._events and await self._is_caught_up():
                    if self._page.state in TERMINAL_SESSION_STATES:
                        for step in self._feed.retract():
                            yield step
                    return
                await self._wait()
                for step in self._take():
                    yield step
        finally:
            await self._pages.close()
            if self._transcript is not None:
                await self._transcript.close()

    async def _is_due(self, event: SessionEvent) -> bool:
        is_end = ends_run(event) or event.kind in TERMINAL_EVENT_KINDS
        return not is_end or await self._is_caught_up()

    async def _is_caught_up(self) -> bool:
        """Return whether all entries were sent that were there when the page was read."""
        if self._head_seq < 0:
            transcripts, session_id = self._watch.source.transcripts, self._watch.session_id
            self._head_seq = await transcripts.head_seq(session_id) if self._is_spawned else 0
        return self._feed.read_seq >= self._head_seq

    async def _wait(self) -> None:
        """Wait for the next page, if all events of this one were sent, and for the transcript."""
        all_were_sent = not self._events and not self._page.is_last
        if self._transcript is None and self._is_spawned and not (all_were_sent and self._page.events):
            watch, begin = self._watch, self._watch.position
            self._transcript = ReadAhead(
                watch.source.transcripts.watch(
                    watch.tenant_id, watch.session_id, begin.transcript_cursor, begin.after_seq
                )
            )
            self._transcript.begin()
        awaited: set[asyncio.Task[Any]] = {self._pages.next} if all_were_sent else set()
        if self._transcript is not None:
            awaited.add(self._transcript.next)
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)

    def _take(self) -> Iterator[Step]:
        if not self._events and not self._page.is_last and self._pages.next.done():
            page = self._pages.next.result()
            if page is not None:
                self._page, self._head_seq = page, -1
                self._events.extend(page.events)
                self._is_spawned = self._is_spawned or _is_spawned(page)
                self._pages.begin()
        elif self._transcript is not None and self._transcript.next.done():
            response = self._transcript.next.result()
            if response is not None:
                yield from self._feed.take_response(response)
                self._transcript.begin()


def _is_spawned(page: EventPage) -> bool:
    """Return whether the session has a transcript. The events may be newer than the state."""
    runs = any(event.kind is EventKind.RUN for event in page.events)
    return runs or page.state not in (SessionState.PROVISIONING, SessionState.SPAWN_FAILED)


def _up_to_terminal(found: list[SessionEvent]) -> list[SessionEvent]:
    """Return the events up to a terminal one: a budget can still be changed behind it."""
    for place, event in enumerate(found):
        if event.kind in TERMINAL_EVENT_KINDS:
            return found[: place + 1]
    return found
