"""`Session.live` of the mesh in memory, as the tests of a program use it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from spawnmesh.content.v1.message_pb2 import ROLE_USER
from spawnmesh.session.v1.session_service_pb2 import WatchSessionRequest, WatchSessionResponse
from spawnmesh_client import (
    Budget,
    EntryAppended,
    EventKind,
    InvalidRequest,
    LiveEvent,
    NotFound,
    Session,
    SessionChanged,
    TextDelta,
    sync,
)
from spawnmesh_client.testing import FakeMesh
from spawnmesh_core.ids import IdKind, new_id

SECONDS = 60.0


async def all_of(events: AsyncIterator[LiveEvent]) -> list[LiveEvent]:
    """Return what the stream yields until it ends."""
    async with asyncio.timeout(SECONDS):
        return [one async for one in events]


async def some_of(events: AsyncIterator[LiveEvent], count: int) -> list[LiveEvent]:
    """Return what the stream yields next."""
    async with asyncio.timeout(SECONDS):
        return [await anext(events) for _ in range(count)]


def shown(events: list[LiveEvent], session: Session | None = None) -> list[tuple[Any, ...]]:
    """Return the events, or those of the session, without their cursors."""
    return [_shown(one) for one in events if session is None or one.session_id == session.session_id]


def _shown(one: LiveEvent) -> tuple[Any, ...]:
    match one:
        case SessionChanged():
            return (str(one.event.run_state or one.event.kind),)
        case TextDelta():
            return ("text", one.text, one.begins_draft)
        case EntryAppended():
            return ("entry", one.entry.text, one.completes_draft)
        case _:
            return ("retracted",)


async def test_answer_comes_as_text_and_then_as_an_entry() -> None:
    mesh = FakeMesh()
    mesh.answers("forty-two", "")
    session = await mesh.spawn("Work.", mode="SESSION")
    stream = session.live()
    first = shown(await some_of(stream, 10))
    assert first[:3] == [("PROVISIONING",), ("QUEUED",), ("RUNNING",)]
    assert first[5:] == [
        ("text", "forty", True), ("text", "-two", False), ("entry", "forty-two", True), ("entry", "", False),
        ("SUCCEEDED",),
    ]  # fmt: skip
    await session.send("And?")
    second = shown(await some_of(stream, 6))
    assert (second[:2], second[-1]) == ([("QUEUED",), ("RUNNING",)], ("SUCCEEDED",))
    assert ("entry", "", False) in second, "an answer without a text has no draft"
    await session.kill()
    assert shown(await all_of(stream)) == [("CLOSED",)]
    events = await all_of(session.live())
    for place, one in enumerate(events, 1):
        assert await all_of(session.live(after=one.cursor)) == events[place:]
    assert await all_of(mesh.live(session.session_id)) == events
    with sync.blocking(mesh) as blocking:
        of_thread = await asyncio.to_thread(lambda: list(blocking.live(session.session_id)))
    assert of_thread == events


async def test_session_that_is_deleted_ends_the_stream_with_not_found() -> None:
    mesh = FakeMesh()
    mesh.holds()
    session = await mesh.spawn("Work.")
    stream = session.live()
    await some_of(stream, 3)
    await session.delete()
    for events in (stream, session.live(), mesh.live(new_id(IdKind.SESSION))):
        with pytest.raises(NotFound):
            await all_of(events)


async def test_events_end_with_the_session_also_if_its_budget_changes_later() -> None:
    mesh = FakeMesh()
    session = await mesh.spawn("Work.", budget=Budget(calls=8))
    await session.result(SECONDS)
    before = await all_of(session.live())
    await session.set_budget(calls=9)
    assert await all_of(session.live()) == before
    assert shown(before)[-1] == ("CLOSED",)


async def family(mesh: FakeMesh) -> tuple[Session, Session, Session]:
    """Spawn a session that is held, its child, and the child of that."""
    mesh.holds()
    parent = await mesh.spawn("Work.", mode="SESSION")
    await parent.refresh()
    mesh.answers("twenty-one", "seven")
    child = await mesh.spawn("Half of it.", agent="default", parent=parent, mode="SESSION")
    await child.result(SECONDS)
    grandchild = await mesh.spawn("A third.", parent=child)
    await grandchild.result(SECONDS)
    mesh.finish(parent.session_id, "forty-two")
    return parent, child, grandchild


async def test_spawn_of_a_child_is_an_event_of_its_parent() -> None:
    mesh = FakeMesh()
    parent, child, _ = await family(mesh)
    found = [one async for one in parent.events(wait=False) if one.kind is EventKind.CHILD_SPAWNED]
    assert [(one.child_session_id, one.detail) for one in found] == [(child.session_id, "default")]
    alone = await some_of(parent.live(), 11)
    assert {one.session_id for one in alone} == {parent.session_id}
    assert shown(alone).count(("CHILD_SPAWNED",)) == 1


async def test_descendants_come_behind_their_spawn_until_all_have_ended() -> None:
    mesh = FakeMesh()
    parent, child, grandchild = await family(mesh)
    stream = mesh.live(parent.session_id, with_descendants=True)
    events: list[LiveEvent] = []
    while ("CLOSED",) not in shown(events, grandchild):
        events += await some_of(stream, 1)
    await parent.kill()
    await child.kill()
    events += await all_of(stream)
    assert shown(events, grandchild) == [
        ("PROVISIONING",), ("QUEUED",), ("RUNNING",), ("entry", "", False), ("entry", "A third.", False),
        ("text", "sev", True), ("text", "en", False), ("entry", "seven", True), ("entry", "", False),
        ("SUCCEEDED",), ("CLOSED",),
    ]  # fmt: skip
    for one in (parent, child):
        assert shown(events, one) == shown(await all_of(one.live()))
    for session, spawner in ((child, parent), (grandchild, child)):
        (spawned,) = [
            place
            for place, one in enumerate(events)
            if isinstance(one, SessionChanged) and one.event.child_session_id == session.session_id
        ]
        assert events[spawned].session_id == spawner.session_id
        assert spawned < min(
            place for place, one in enumerate(events) if one.session_id == session.session_id
        )


async def test_every_cursor_of_a_family_continues_with_exactly_the_rest() -> None:
    mesh = FakeMesh()
    parent, *_ = await family(mesh)
    await parent.kill()
    events = await all_of(parent.live(with_descendants=True))
    assert len({one.session_id for one in events}) == 3
    assert len({one.cursor for one in events}) == len(events)
    for place, one in enumerate(events, 1):
        rest = await all_of(parent.live(after=one.cursor, with_descendants=True))
        for session_id in {one.session_id for one in events}:
            assert [_shown(one) for one in rest if one.session_id == session_id] == [
                _shown(one) for one in events[place:] if one.session_id == session_id
            ], place
    with sync.blocking(mesh) as blocking:
        of_thread = await asyncio.to_thread(
            lambda: list(blocking.session(parent.session_id).live(with_descendants=True))
        )
    assert of_thread == events


async def test_child_that_is_deleted_has_ended() -> None:
    mesh = FakeMesh()
    mesh.holds()
    parent = await mesh.spawn("Work.")
    await parent.refresh()
    mesh.holds()
    child = await mesh.spawn("Half of it.", parent=parent)
    stream = parent.live(with_descendants=True)
    events: list[LiveEvent] = []
    while ("RUNNING",) not in shown(events, child):
        events += await some_of(stream, 1)
    await child.delete()
    mesh.finish(parent.session_id, "forty-two")
    events += await all_of(stream)
    assert shown(events, parent)[-1] == ("CLOSED",)
    assert ("CLOSED",) not in shown(events, child)


async def test_cursor_of_another_watch_is_refused() -> None:
    mesh = FakeMesh()
    session, other = await mesh.spawn("Work."), await mesh.spawn("Work.")
    cursors = {}
    for with_transcript, with_descendants in ((False, False), (True, False), (True, True)):
        request = WatchSessionRequest(
            session_id=session.session_id, with_transcript=with_transcript, with_descendants=with_descendants
        )
        async with aclosing(mesh.wire.watch(request)) as messages:
            cursors[with_transcript, with_descendants] = (await anext(messages)).cursor
    alone, whole = cursors[True, False], cursors[True, True]
    assert await all_of(session.live(after=alone))
    assert await all_of(session.live(after=whole, with_descendants=True))
    refused = [
        session.live(after=whole),
        session.live(after=alone, with_descendants=True),
        session.live(after=cursors[False, False]),
        other.live(after=alone),
        *(session.live(after=text) for text in ("x", alone + "x", "~", alone.partition("~")[0])),
        session.live(after=f"{alone.rpartition('.')[0]}.{'9' * 5000}"),
    ]
    for events in refused:
        with pytest.raises(InvalidRequest, match="cursor: is no cursor of a watch like this one"):
            await all_of(events)


async def test_beginning_has_neither_a_cursor_nor_descendants() -> None:
    mesh = FakeMesh()
    session = await mesh.spawn("Work.")
    first, *_ = await all_of(session.live())
    for name in ("after_event", "after_seq"):
        for options in ({"after": first.cursor}, {"with_descendants": True}):
            with pytest.raises(InvalidRequest, match=f"{name}: is possible without"):
                await all_of(session.live(**{name: 1}, **options))  # type: ignore[arg-type]


async def test_watch_that_ends_at_the_newest_message_has_all_descendants() -> None:
    mesh = FakeMesh()
    parent, child, grandchild = await family(mesh)
    request = WatchSessionRequest(session_id=parent.session_id, with_descendants=True, ends_at_newest=True)
    async with asyncio.timeout(SECONDS):
        found = [message.session_id async for message in mesh.wire.watch(request)]
    assert list(dict.fromkeys(found)) == [one.session_id for one in (parent, child, grandchild)]


async def test_message_that_is_no_event_is_left_out_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer service may send other kinds."""
    mesh = FakeMesh()
    watch = mesh._fake.WatchSession

    async def newer(request: WatchSessionRequest) -> AsyncIterator[WatchSessionResponse]:
        async for message in watch(request):
            yield message
            yield WatchSessionResponse(cursor=message.cursor, session_id=message.session_id)

    monkeypatch.setattr(mesh._fake, "WatchSession", newer)
    session = await mesh.spawn("Work.")
    for events in (session.events(), mesh.events(session.session_id)):
        numbers = [one.number async for one in events]
        assert numbers == list(range(1, 6))


async def test_reader_that_stops_is_not_read_ahead_for(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = FakeMesh()
    produced, watch = 0, mesh._fake.WatchSession

    async def counted(request: WatchSessionRequest) -> AsyncIterator[WatchSessionResponse]:
        nonlocal produced
        async for message in watch(request):
            produced += 1
            yield message

    monkeypatch.setattr(mesh._fake, "WatchSession", counted)
    session = await mesh.spawn("Work.")
    for number in range(100):
        mesh._fake.records[session.session_id].add_message(ROLE_USER, str(number))
    async with aclosing(session.live()) as events:
        await some_of(events, 20)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert produced == 20
