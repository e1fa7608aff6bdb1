"""`Session.live`: one stream of a session's events, its entries and the answers that models give."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1.message_pb2 import ROLE_USER
from spawnmesh.session.v1 import session_pb2
from spawnmesh_client import (
    DraftRetracted,
    EntryAppended,
    InvalidRequest,
    LiveEvent,
    Mesh,
    NotFound,
    Session,
    SessionChanged,
    TextDelta,
    connect,
    live_streams,
    sync,
)
from spawnmesh_client.testing import FakeMesh as MemoryMesh
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.command.fake_mesh import (
    SESSION_ID,
    FakeMesh,
    FakeSessions,
    add_sessions,
    event,
    mesh,
    served,
    session_in,
    unset,
)
from tests.support.command.live import RUN_ID, run_event, said
from tests.support.command.tenants import FakeTenants
from tests.support.waiting import eventually

__all__ = ["mesh", "unset"]

PROVISIONING = session_pb2.SESSION_EVENT_KIND_PROVISIONING
CLOSED = session_pb2.SESSION_EVENT_KIND_CLOSED
QUEUED, RUNNING = session_pb2.RUN_STATE_QUEUED, session_pb2.RUN_STATE_RUNNING
SUCCEEDED, KILLED = session_pb2.RUN_STATE_SUCCEEDED, session_pb2.RUN_STATE_KILLED
SECONDS = 60.0


@asynccontextmanager
async def connected(targets: dict[str, str], keys: Path) -> AsyncIterator[Mesh]:
    token = TokenMinter("client", keys / "client.pem").client_token("acme", "test", 600)
    async with connect(targets=targets, token=token) as client:
        yield client


@asynccontextmanager
async def opened(mesh: FakeMesh, keys: Path) -> AsyncIterator[Session]:
    async with connected(mesh.targets, keys) as client:
        yield await client.session(SESSION_ID)


class Reader:
    """The events of a session, read one by one with a timeout."""

    def __init__(self, session: Session, after: str = "") -> None:
        self.events = session.live(after=after)
        self.cursor = after

    async def many(self, count: int) -> list[tuple[Any, ...]]:
        return [shown(await self._next()) for _ in range(count)]

    async def rest(self) -> list[tuple[Any, ...]]:
        async with asyncio.timeout(SECONDS):
            return [shown(one) async for one in self.events]

    async def _next(self) -> LiveEvent:
        async with asyncio.timeout(SECONDS):
            one = await anext(self.events)
        self.cursor = one.cursor
        return one


def shown(one: LiveEvent) -> tuple[Any, ...]:
    """Return the event without its cursor."""
    match one:
        case SessionChanged():
            return (str(one.event.run_state or one.event.kind),)
        case TextDelta():
            return ("text", one.text, one.begins_draft)
        case DraftRetracted():
            return ("retracted",)
        case EntryAppended():
            return ("entry", one.entry.text, one.completes_draft)


def of_session(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [one for one in events if len(one) == 1 and one != ("retracted",)]


def of_transcript(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [one for one in events if one not in of_session(events)]


def append(mesh: FakeMesh, text: str, *, completes: bool = False) -> None:
    """Append an answer, which the watchers get at once."""
    mesh.transcript.entries.append(mesh.live.append(said(text), completes=completes))


async def test_the_end_of_a_run_comes_behind_all_entries_that_it_has(
    mesh: FakeMesh, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_streams, "_STATES_FIRST_SECONDS", 60.0)  # The machine may be slow.
    mesh.sessions.events = [
        run_event(1, QUEUED),
        run_event(2, RUNNING),
        run_event(3, SUCCEEDED),
        event(4, CLOSED),
    ]
    append(mesh, "one")
    two, three = mesh.live.entry(said("two")), mesh.live.entry(said("three"))
    mesh.transcript.entries += [two, three]
    async with opened(mesh, keys) as session:
        reader = Reader(session)
        # The states that are there come first.
        assert await reader.many(3) == [("QUEUED",), ("RUNNING",), ("entry", "one", False)]
        # The end of the run is known by now, or soon.
        mesh.live.speak("tw", begins=True)
        assert await reader.many(1) == [("text", "tw", True)]
        mesh.live.speak("o")
        mesh.live.send(two, completes=True)
        assert await reader.many(2) == [("text", "o", False), ("entry", "two", True)]
        mesh.live.send(three)
        assert await reader.rest() == [("entry", "three", False), ("SUCCEEDED",), ("CLOSED",)]


async def test_each_stream_goes_on_behind_its_own_last_event_after_a_restart(
    mesh: FakeMesh, keys: Path
) -> None:
    mesh.sessions.events = [
        run_event(1, QUEUED),
        run_event(2, RUNNING),
        run_event(3, SUCCEEDED),
        event(4, CLOSED),
    ]
    draining = [MeshError(Reason.DRAINING, "stopping", retry_after_seconds=0.01) for _ in range(3)]
    mesh.sessions.broken_after = {2: draining[0]}
    mesh.live.broken_after = {1: draining[1], 3: draining[2]}
    append(mesh, "one")
    mesh.live.speak("tw", begins=True)
    mesh.live.speak("o")
    append(mesh, "two", completes=True)
    async with opened(mesh, keys) as session:
        events = await Reader(session).rest()
    assert of_session(events) == [("QUEUED",), ("RUNNING",), ("SUCCEEDED",), ("CLOSED",)]
    assert of_transcript(events) == [
        ("entry", "one", False), ("text", "tw", True), ("text", "o", False), ("entry", "two", True),
    ]  # fmt: skip
    assert [one.after_cursor for one in mesh.sessions.requests] == [0, 2]
    assert mesh.live.cursors == ["", "1", "3"]


async def test_every_cursor_continues_with_the_rest(mesh: FakeMesh, keys: Path) -> None:
    mesh.sessions.events = [
        event(1, PROVISIONING),
        run_event(2, QUEUED),
        run_event(3, SUCCEEDED),
        event(4, CLOSED),
    ]
    append(mesh, "one")
    mesh.live.speak("thr", begins=True)
    mesh.live.retract()
    mesh.live.speak("tw", begins=True)
    mesh.live.speak("o")
    append(mesh, "two", completes=True)
    async with opened(mesh, keys) as session:
        reader = Reader(session)
        events, cursors = [], []
        for _ in range(10):
            events += await reader.many(1)
            cursors.append(reader.cursor)
        assert await reader.rest() == []
    assert (len(of_session(events)), len(set(cursors))) == (4, 10)
    assert events[-2:] == [("SUCCEEDED",), ("CLOSED",)]
    async with opened(mesh, keys) as session:
        for place, cursor in enumerate(cursors, 1):
            rest = await Reader(session, cursor).rest()
            assert of_session(rest) == of_session(events[place:]), cursor
            assert of_transcript(rest) == of_transcript(events[place:]), cursor


async def test_the_end_of_a_run_retracts_the_draft_that_the_service_still_has(
    mesh: FakeMesh, keys: Path
) -> None:
    """The runner was lost: the service gets to know that with the next claim."""
    mesh.sessions.events = [run_event(1, RUNNING), run_event(2, KILLED)]
    mesh.sessions.hold = asyncio.Event()
    note = mesh.live.entry(said("note", role=ROLE_USER))
    mesh.transcript.entries.append(note)
    async with opened(mesh, keys) as session:
        reader = Reader(session)
        assert await reader.many(1) == [("RUNNING",)]
        mesh.live.speak("On", begins=True)
        assert await reader.many(1) == [("text", "On", True)]
        mesh.live.send(note)
        assert await reader.many(1) == [("entry", "note", False)]
        open_draft = reader.cursor
        assert await reader.many(1) == [("retracted",)]
        retracted = reader.cursor
        assert await reader.many(1) == [("KILLED",)]
        assert await Reader(session, open_draft).many(2) == [("retracted",), ("KILLED",)]
        mesh.live.speak("e")
        mesh.live.retract()
        mesh.live.speak("Two", begins=True, run_id=new_id(IdKind.RUN))
        rest = await Reader(session, retracted).many(2)
        assert sorted(rest) == [("KILLED",), ("text", "Two", True)]
        assert await Reader(session, reader.cursor).many(1) == [("text", "Two", True)]
        assert await reader.many(1) == [("text", "Two", True)]


async def test_text_that_comes_after_the_end_of_its_run_is_left_out(mesh: FakeMesh, keys: Path) -> None:
    mesh.sessions.events = [run_event(1, RUNNING), run_event(2, KILLED)]
    mesh.sessions.hold = asyncio.Event()
    async with opened(mesh, keys) as session:
        reader = Reader(session)
        assert await reader.many(2) == [("RUNNING",), ("KILLED",)]
        mesh.live.speak("On", begins=True)
        mesh.live.speak("e")
        mesh.live.retract()
        mesh.live.speak("Two", begins=True, run_id=new_id(IdKind.RUN))
        assert await reader.many(1) == [("text", "Two", True)]


async def test_the_transcript_of_a_session_that_is_being_spawned_is_waited_for(
    mesh: FakeMesh, keys: Path
) -> None:
    mesh.sessions.known = [session_in(QUEUED)]
    mesh.sessions.known[0].state = session_pb2.SESSION_STATE_PROVISIONING
    mesh.sessions.events = [event(1, PROVISIONING)]
    mesh.sessions.hold = asyncio.Event()
    mesh.live.refusals = [not_found("transcript", SESSION_ID) for _ in range(2)]
    append(mesh, "one")
    async with opened(mesh, keys) as session:
        reader = Reader(session)
        assert await reader.many(1) == [("PROVISIONING",)]
        early = reader.cursor
        await eventually(lambda: len(mesh.live.cursors) > 1)
        mesh.sessions.known[0].state = session_pb2.SESSION_STATE_ACTIVE
        assert await reader.many(1) == [("entry", "one", False)]
        assert await Reader(session, early).many(1) == [("entry", "one", False)]


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_session_whose_spawn_failed_has_no_transcript(
    mesh: FakeMesh, keys: Path, has_begun: bool
) -> None:
    missing = not_found("transcript", SESSION_ID)
    mesh.sessions.known[0].state = session_pb2.SESSION_STATE_SPAWN_FAILED
    mesh.sessions.events = [event(1, PROVISIONING), event(2, session_pb2.SESSION_EVENT_KIND_SPAWN_FAILED)]
    # The transcript is looked for before the last event comes.
    mesh.sessions.broken_after = {1: MeshError(Reason.DRAINING, "stopping", retry_after_seconds=0.3)}
    if has_begun:
        mesh.live.append(said("one"))
        mesh.live.broken_after = {1: missing}
    else:
        mesh.live.refusals = [missing] * 5
    async with opened(mesh, keys) as session:
        assert of_session(await Reader(session).rest()) == [("PROVISIONING",), ("SPAWN_FAILED",)]


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_transcript_that_was_deleted_ends_the_stream_with_not_found(
    mesh: FakeMesh, keys: Path, has_begun: bool
) -> None:
    missing = not_found("transcript", SESSION_ID)
    mesh.sessions.events = [run_event(1, RUNNING)]
    mesh.sessions.hold = asyncio.Event()
    if has_begun:
        mesh.live.append(said("one"))
        mesh.live.broken_after = {1: missing}
    mesh.live.refusals = [] if has_begun else [missing] * 2
    async with opened(mesh, keys) as session:
        with pytest.raises(NotFound):
            await Reader(session).rest()
    assert len(mesh.live.cursors) == (1 if has_begun else 2)


async def test_a_session_that_ended_before_its_cursor_has_no_more_events(mesh: FakeMesh, keys: Path) -> None:
    mesh.sessions.events = [run_event(1, SUCCEEDED), event(2, CLOSED)]
    append(mesh, "one")
    async with opened(mesh, keys) as session:
        reader = Reader(session)
        assert (await reader.many(3))[-1] == ("CLOSED",)
        assert await Reader(session, reader.cursor).rest() == []
        append(mesh, "late")
        assert await Reader(session, reader.cursor).rest() == [("entry", "late", False)]


@pytest.mark.parametrize("cursor", ["3", "x", ".", "-1.", "1.a b", "1.a.b.c", "1.é", f"{10**15}.", "1.\n"])
async def test_a_text_that_is_no_cursor_is_refused(mesh: FakeMesh, keys: Path, cursor: str) -> None:
    async with opened(mesh, keys) as session:
        with pytest.raises(InvalidRequest, match="after: is no cursor"):
            await Reader(session, cursor).rest()
    assert mesh.sessions.requests == []


class CountedSessions(FakeSessions):
    """Count the watches that are open."""

    open_count = 0

    async def WatchSession(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.open_count += 1
        try:
            async for answer in super().WatchSession(request, context):
                yield answer
        finally:
            self.open_count -= 1


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_a_reader_that_leaves_ends_both_streams(mesh: FakeMesh, keys: Path, how: str) -> None:
    sessions = CountedSessions(events=[run_event(1, RUNNING)], hold=asyncio.Event())
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(
            served("session", keys, add_sessions(sessions, FakeTenants()))
        )
        client = await stack.enter_async_context(connected({**mesh.targets, "session": target}, keys))
        session = await client.session(SESSION_ID)
        before = asyncio.all_tasks()
        async with aclosing(session.live()) as events:
            await anext(events)
            await eventually(lambda: (sessions.open_count, mesh.live.open_count) == (1, 1))
            if how == "cancelled":
                reading = asyncio.create_task(anext(events))
                await asyncio.sleep(0)
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
        ours = {task for task in asyncio.all_tasks() - before if "_Reader" in repr(task)}
        assert ours == set()
        await eventually(lambda: (sessions.open_count, mesh.live.open_count) == (0, 0))


async def test_a_reader_that_stops_is_read_ahead_for_by_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = MemoryMesh()
    services, produced = mesh._fake, 0
    watch = services.WatchTranscript

    async def counted(request: Any) -> AsyncIterator[Any]:
        nonlocal produced
        async for answer in watch(request):
            produced += 1
            yield answer

    monkeypatch.setattr(services, "WatchTranscript", counted)
    session = await mesh.spawn("Work.")
    for number in range(100):
        services.records[session.session_id].add_message(ROLE_USER, str(number))
    async with aclosing(session.live()) as events:
        read = 0
        while read < 5:
            read += not isinstance(await anext(events), SessionChanged)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert produced <= read + 2, "the first one has no event"


async def test_the_mesh_in_memory_yields_an_answer_as_text_and_then_as_an_entry() -> None:
    mesh = MemoryMesh()
    mesh.answers("forty-two", "")
    session = await mesh.spawn("Work.", mode="SESSION")
    reader = Reader(session)
    first = await reader.many(9)
    assert of_session(first) == [("PROVISIONING",), ("QUEUED",), ("RUNNING",)]
    assert of_transcript(first)[2:] == [
        ("text", "forty", True), ("text", "-two", False), ("entry", "forty-two", True), ("entry", "", False),
    ]  # fmt: skip
    assert await reader.many(1) == [("SUCCEEDED",)]
    await session.send("And?")
    assert ("entry", "", False) in await reader.many(6), "an answer without a text has no draft"
    await session.kill()
    assert await reader.rest() == [("CLOSED",)]
    events = [one async for one in session.live()]
    for place, one in enumerate(events, 1):
        assert [rest async for rest in session.live(after=one.cursor)] == events[place:]
    other = await mesh.spawn("Work.")
    with pytest.raises(InvalidRequest, match="cursor"):
        await Reader(other, reader.cursor).rest()
    with sync.blocking(mesh) as blocking:
        assert [type(one) for one in blocking.session(session.session_id).live()] == [
            type(one) for one in events
        ]
    await other.delete()
    with pytest.raises(NotFound):
        await Reader(other).rest()


async def test_text_has_its_run_and_model(mesh: FakeMesh, keys: Path) -> None:
    mesh.transcript.entries.append(mesh.live.entry(said("On it.")))  # It has not come yet.
    mesh.live.speak("On", begins=True)
    async with opened(mesh, keys) as session, aclosing(session.live()) as events:
        one = await anext(events)
    assert one == TextDelta(f"0.1.{RUN_ID}", RUN_ID, "p/m", "On", begins_draft=True)


def test_the_end_of_a_childs_run_is_not_that_of_a_run_of_the_session() -> None:
    ended = session_pb2.RUN_STATE_SUCCEEDED
    child = session_pb2.SessionEvent(
        kind=session_pb2.SESSION_EVENT_KIND_CHILD_ANNOUNCED, run_id="run_child", run_state=ended
    )
    assert not live_streams.ends_run(child)
    assert live_streams.ends_run(run_event(1, ended))
