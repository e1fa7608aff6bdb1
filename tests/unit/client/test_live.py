"""`Session.live`: one stream of a session's events, its entries and the answers that models give."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.session_service_pb2 import WatchSessionResponse
from spawnmesh_client import (
    DraftRetracted,
    EntryAppended,
    EventKind,
    InvalidRequest,
    LiveEvent,
    Mesh,
    NotFound,
    RunState,
    Session,
    SessionChanged,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    connect,
    sync,
)
from spawnmesh_client.live import ends_run
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.command.fake_mesh import SESSION_ID, FakeMesh, event, mesh, unset
from tests.support.command.live import RUN_ID, run_event, said, spawned_event
from tests.support.waiting import eventually

__all__ = ["mesh", "unset"]

PROVISIONING = session_pb2.SESSION_EVENT_KIND_PROVISIONING
CLOSED = session_pb2.SESSION_EVENT_KIND_CLOSED
RUNNING, SUCCEEDED = session_pb2.RUN_STATE_RUNNING, session_pb2.RUN_STATE_SUCCEEDED
CHILD_ID = new_id(IdKind.SESSION)
SECONDS = 60.0


@asynccontextmanager
async def connected(mesh: FakeMesh, keys: Path) -> AsyncIterator[Mesh]:
    token = TokenMinter("client", keys / "client.pem").client_token("acme", "test", 600)
    async with connect(targets=mesh.targets, token=token) as client:
        yield client


@asynccontextmanager
async def opened(mesh: FakeMesh, keys: Path) -> AsyncIterator[Session]:
    async with connected(mesh, keys) as client:
        yield await client.session(SESSION_ID)


async def all_of(events: AsyncIterator[LiveEvent]) -> list[LiveEvent]:
    """Return what the stream yields until it ends."""
    async with asyncio.timeout(SECONDS):
        return [one async for one in events]


async def some_of(events: AsyncIterator[LiveEvent], count: int) -> list[LiveEvent]:
    """Return what the stream yields next."""
    async with asyncio.timeout(SECONDS):
        return [await anext(events) for _ in range(count)]


def shown(events: list[LiveEvent]) -> list[tuple[Any, ...]]:
    """Return the events without their cursors and sessions."""
    return [_shown(one) for one in events]


def _shown(one: LiveEvent) -> tuple[Any, ...]:
    match one:
        case SessionChanged():
            return (str(one.event.run_state or one.event.kind),)
        case TextDelta():
            return ("text", one.text, one.begins_draft)
        case DraftRetracted():
            return ("retracted",)
        case EntryAppended():
            return ("entry", one.entry.text, one.completes_draft)


def answer_twice(mesh: FakeMesh) -> list[tuple[Any, ...]]:
    """Give the session a run that began an answer in vain, and return what a watcher is shown."""
    mesh.sessions.events = [
        event(1, PROVISIONING),
        run_event(2, RUNNING),
        run_event(3, SUCCEEDED),
        event(4, CLOSED),
    ]
    mesh.live.append(said("one"))
    mesh.live.speak("thr", begins=True)
    mesh.live.retract()
    mesh.live.speak("tw", begins=True)
    mesh.live.speak("o")
    mesh.live.append(said("two"), completes=True)
    return [
        ("PROVISIONING",), ("RUNNING",), ("entry", "one", False),
        ("text", "thr", True), ("retracted",),
        ("text", "tw", True), ("text", "o", False), ("entry", "two", True),
        ("SUCCEEDED",), ("CLOSED",),
    ]  # fmt: skip


async def test_each_message_becomes_its_view_in_the_order_of_the_service(mesh: FakeMesh, keys: Path) -> None:
    expected = answer_twice(mesh)
    async with opened(mesh, keys) as session:
        events = await all_of(session.live())
    assert shown(events) == expected
    assert {one.session_id for one in events} == {SESSION_ID}
    assert len({one.cursor for one in events}) == len(events)


async def test_views_have_all_that_their_messages_say(mesh: FakeMesh, keys: Path) -> None:
    mesh.sessions.events = [run_event(1, RUNNING)]
    mesh.live.speak("On", begins=True)
    mesh.live.think("Hm.")
    mesh.live.call("c1", "read_file", "{", begins=True)
    mesh.live.retract()
    entry = mesh.live.append(said("On it."))
    async with opened(mesh, keys) as session:
        changed, text, thinking, call, retracted, appended = await all_of(session.live())
    assert isinstance(changed, SessionChanged)
    assert (changed.cursor, changed.session_id) == ("1.0", SESSION_ID)
    assert (changed.event.number, changed.event.kind) == (1, EventKind.RUN)
    assert (changed.event.run_id, changed.event.run_state) == (RUN_ID, RunState.RUNNING)
    assert text == TextDelta("1.1", SESSION_ID, RUN_ID, "p/m", "On", begins_draft=True)
    assert thinking == ThinkingDelta("1.2", SESSION_ID, RUN_ID, "p/m", "Hm.", begins_draft=False)
    assert call == ToolCallDelta(
        "1.3", SESSION_ID, RUN_ID, "p/m", "c1", "read_file", "{", begins_call=True, begins_draft=False
    )
    assert retracted == DraftRetracted("1.4", SESSION_ID, RUN_ID)
    assert isinstance(appended, EntryAppended)
    assert (appended.cursor, appended.session_id, appended.completes_draft) == ("1.5", SESSION_ID, False)
    assert (appended.entry.entry_id, appended.entry.seq) == (entry.entry_id, 1)


async def test_stream_that_breaks_goes_on_behind_its_last_cursor(mesh: FakeMesh, keys: Path) -> None:
    expected = answer_twice(mesh)
    draining = [MeshError(Reason.DRAINING, "stopping", retry_after_seconds=0.01) for _ in range(5)]
    mesh.live.refusals = [draining[0]]
    mesh.sessions.broken_after = {2: draining[1], 3: draining[2]}
    mesh.live.broken_after = {1: draining[3], 4: draining[4]}
    async with opened(mesh, keys) as session:
        events = await all_of(session.live())
    assert shown(events) == expected
    assert mesh.sessions.cursors == ["", "", "2.0", "2.1", "2.4", "3.6"]


async def test_every_cursor_continues_with_the_rest(mesh: FakeMesh, keys: Path) -> None:
    answer_twice(mesh)
    async with opened(mesh, keys) as session:
        events = await all_of(session.live())
        for place, one in enumerate(events, 1):
            assert await all_of(session.live(after=one.cursor)) == events[place:], one.cursor


async def test_message_of_a_kind_that_a_newer_service_sends_is_skipped(mesh: FakeMesh, keys: Path) -> None:
    mesh.sessions.events = [run_event(1, RUNNING)]
    mesh.live.append(said("one"))
    mesh.live.add(WatchSessionResponse())
    mesh.live.append(said("two"))
    async with opened(mesh, keys) as session:
        events = await all_of(session.live())
        rest = await all_of(session.live(after=events[1].cursor))
    assert shown(events) == [("RUNNING",), ("entry", "one", False), ("entry", "two", False)]
    assert rest == events[2:]


@pytest.mark.parametrize("of", ["session", "mesh"])
async def test_descendants_come_with_their_own_session(mesh: FakeMesh, keys: Path, of: str) -> None:
    mesh.sessions.events = [run_event(1, RUNNING), spawned_event(2, CHILD_ID, "researcher"), event(3, CLOSED)]
    mesh.live.happen(run_event(1, RUNNING), CHILD_ID)
    mesh.live.speak("Here", begins=True)
    mesh.live.speak("There", begins=True, session_id=CHILD_ID)
    mesh.live.retract(CHILD_ID)
    mesh.live.append(said("Here"), completes=True)
    mesh.live.append(said("Nowhere."), session_id=CHILD_ID)
    mesh.live.happen(event(2, CLOSED), CHILD_ID)
    async with connected(mesh, keys) as client:
        watched = await client.session(SESSION_ID) if of == "session" else client

        def live(**options: Any) -> AsyncIterator[LiveEvent]:
            return (
                watched.live(**options)
                if isinstance(watched, Session)
                else watched.live(SESSION_ID, **options)
            )

        events = await all_of(live(with_descendants=True))
        assert await all_of(live(after=events[4].cursor, with_descendants=True)) == events[5:]
        alone = await all_of(live())
    below = [one for one in events if one.session_id == CHILD_ID]
    assert shown(below) == [
        ("RUNNING",), ("text", "There", True), ("retracted",), ("entry", "Nowhere.", False), ("CLOSED",),
    ]  # fmt: skip
    (spawned,) = [
        one.event
        for one in events
        if isinstance(one, SessionChanged) and one.event.kind is EventKind.CHILD_SPAWNED
    ]
    assert (spawned.child_session_id, spawned.detail) == (CHILD_ID, "researcher")
    assert shown(alone) == shown([one for one in events if one.session_id == SESSION_ID])


async def test_deleted_session_ends_the_stream_with_not_found(mesh: FakeMesh, keys: Path) -> None:
    mesh.sessions.events = [run_event(1, RUNNING)]
    mesh.sessions.hold = asyncio.Event()
    mesh.live.append(said("one"))
    mesh.live.broken_after = {1: not_found("session", SESSION_ID)}
    async with opened(mesh, keys) as session:
        events = session.live()
        assert len(await some_of(events, 2)) == 2
        with pytest.raises(NotFound):
            await all_of(events)


async def test_session_that_ended_before_its_cursor_has_no_more_events(mesh: FakeMesh, keys: Path) -> None:
    answer_twice(mesh)
    async with opened(mesh, keys) as session:
        events = await all_of(session.live())
        assert await all_of(session.live(after=events[-1].cursor)) == []


async def test_text_that_is_no_cursor_is_refused(mesh: FakeMesh, keys: Path) -> None:
    async with opened(mesh, keys) as session:
        with pytest.raises(InvalidRequest, match=f"cursor: is no cursor of a watch .*{SESSION_ID}"):
            await all_of(session.live(after="x"))
    assert mesh.sessions.cursors == ["x"], "it was not tried again"


async def test_session_that_is_not_there_is_not_watched(mesh: FakeMesh, keys: Path) -> None:
    async with connected(mesh, keys) as client:
        with pytest.raises(NotFound):
            await all_of(client.live(CHILD_ID))
    assert mesh.sessions.cursors == []


@pytest.mark.parametrize("how", ["closed", "cancelled"])
@pytest.mark.parametrize("of", ["Session.live", "Mesh.live", "Session.events", "Mesh.events"])
async def test_reader_that_leaves_ends_the_stream(mesh: FakeMesh, keys: Path, how: str, of: str) -> None:
    mesh.sessions.events = [run_event(1, RUNNING)]
    mesh.sessions.hold = asyncio.Event()
    async with connected(mesh, keys) as client:
        session = await client.session(SESSION_ID)
        kinds: dict[str, Any] = {
            "Session.live": session.live,
            "Mesh.live": lambda: client.live(SESSION_ID),
            "Session.events": session.events,
            "Mesh.events": lambda: client.events(SESSION_ID),
        }
        async with asyncio.timeout(SECONDS), aclosing(kinds[of]()) as events:
            await anext(events)
            await eventually(lambda: mesh.sessions.open_count == 1)
            if how == "cancelled":
                reading = asyncio.create_task(anext(events))
                await asyncio.sleep(0)
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
        await eventually(lambda: mesh.sessions.open_count == 0)


async def test_blocking_forms_yield_the_same(mesh: FakeMesh, keys: Path) -> None:
    answer_twice(mesh)
    mesh.live.append(said("Below."), session_id=CHILD_ID)
    token = TokenMinter("client", keys / "client.pem").client_token("acme", "test", 600)

    def program() -> list[list[LiveEvent]]:
        with sync.connect(targets=mesh.targets, token=token) as client:
            session = client.session(SESSION_ID)
            return [
                list(session.live(with_descendants=True)),
                list(client.live(SESSION_ID, with_descendants=True)),
                list(client.live(SESSION_ID, after="2.1")),
            ]

    of_session, of_mesh, behind = await asyncio.to_thread(program)
    async with opened(mesh, keys) as session:
        assert of_session == of_mesh == await all_of(session.live(with_descendants=True))
        assert behind == await all_of(session.live(after="2.1"))
    assert [one.session_id for one in of_session].count(CHILD_ID) == 1


def test_the_end_of_a_childs_run_is_not_that_of_a_run_of_the_session() -> None:
    child = session_pb2.SessionEvent(
        kind=session_pb2.SESSION_EVENT_KIND_CHILD_ANNOUNCED, run_id="run_child", run_state=SUCCEEDED
    )
    assert not ends_run(child)
    assert ends_run(run_event(1, SUCCEEDED))
