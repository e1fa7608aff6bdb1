"""WatchSession with the transcript: events, entries and answers in one stream, under one cursor."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from spawnmesh.session.v1 import session_pb2, session_service_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.peers import Peer
from spawnmesh_session.clients import transcript_watches

from tests.support.serving import caller_at
from tests.support.session.calls import another, fail, finalize, kill
from tests.support.session.fixtures import NOWHERE
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.watching import Shown, acquire, shown, speak, watched, watching
from tests.support.waiting import eventually

OPEN = session_pb2.SESSION_MODE_SESSION
STATES = [("event", "PROVISIONING"), ("state", "QUEUED"), ("state", "RUNNING")]
TASK = [("entry", 1, False), ("entry", 2, False)]


@pytest.fixture
async def transcript(peers: dict[str, str]) -> AsyncIterator[Peer]:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


def is_reading() -> bool:
    """Return whether the service still reads for a watcher."""
    return any("ReadAhead" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_states_come_first_then_entries_and_the_end_of_the_run_behind_its_answer(
    mesh: Mesh, transcript: Peer
) -> None:
    session = await mesh.spawn()
    held = await mesh.claim(session.session_id)
    await acquire(transcript, held)
    async with watching(mesh, session.session_id) as watch:
        assert await watch.many(5) == [*STATES, *TASK]
        await speak(transcript, held, "For", after_seq=2)
        assert await watch.next() == ("delta", "For", True)
        await speak(transcript, held, "ty", offset=3, after_seq=2)
        assert await watch.next() == ("delta", "ty", False)
        await finalize(mesh, transcript, held, "Forty-two")
        end = await watch.until("event", "CLOSED")
        with pytest.raises(StopAsyncIteration):
            await watch.next()
    assert end[:2] == [("delta", "-two", False), ("entry", 3, True)]
    assert end[-2:] == [("state", "SUCCEEDED"), ("event", "CLOSED")]


async def test_every_cursor_continues_with_exactly_the_rest(mesh: Mesh, transcript: Peer) -> None:
    session = await mesh.spawn(mode=OPEN)
    held = await mesh.claim(session.session_id)
    await acquire(transcript, held)
    cursors, seen = [""], []
    async with watching(mesh, session.session_id) as watch:

        async def go_on(count: int) -> None:
            for _ in range(count):
                seen.append(await watch.next())
                cursors.append(watch.cursor)

        await go_on(5)
        await speak(transcript, held, "For", after_seq=2)
        await go_on(1)
        await speak(transcript, held, "ty", offset=3, after_seq=2)
        await go_on(1)
        await finalize(mesh, transcript, held, "Forty-two")
        while seen[-1] != ("state", "SUCCEEDED"):
            await go_on(1)
    for place, cursor in enumerate(cursors):
        async with watching(mesh, session.session_id, cursor) as watch:
            rest = await watch.until("state", "SUCCEEDED") if seen[place:] else []
        # Stored text comes in one piece, and that of a stored answer with the answer alone.
        told = [*seen[:place], *rest]
        assert _without_texts(told) == _without_texts(seen), place
        assert _completed_texts(told) in ([], ["Forty-two"]), place


def _without_texts(messages: list[Shown]) -> list[Shown]:
    """Return everything but the texts. There is no order between events and entries."""
    return sorted((one[:2] for one in messages if one[0] != "delta"), key=repr)


def _completed_texts(messages: list[Shown]) -> list[str]:
    """Return the text of each draft that an entry completes."""
    texts, text = [], ""
    for kind, *what in messages:
        if kind == "delta":
            text += what[0]
        elif kind == "entry" and what[1]:
            texts, text = [*texts, text], ""
    assert not text, "each draft is completed or retracted"
    return texts


@pytest.mark.parametrize("how", ["failed", "killed"])
async def test_the_end_of_a_run_retracts_what_it_was_saying(mesh: Mesh, transcript: Peer, how: str) -> None:
    session = await mesh.spawn(mode=OPEN)
    held = await mesh.claim(session.session_id)
    await acquire(transcript, held)
    await speak(transcript, held, "On", after_seq=2)
    async with watching(mesh, session.session_id) as watch:
        await watch.until("delta", "On", True)
        open_draft = watch.cursor
        if how == "failed":
            await fail(mesh, held)
        else:
            await kill(mesh, session.session_id)
        state = ("state", how.upper())
        assert [one for one in await watch.until(*state) if one[0] != "entry"] == [("retracted",), state]
    async with watching(mesh, session.session_id, open_draft) as watch:
        assert [one for one in await watch.until(*state) if one[0] != "entry"] == [("retracted",), state]


async def test_a_watch_begins_behind_an_event_and_an_entry(mesh: Mesh, transcript: Peer) -> None:
    session = await mesh.spawn()
    held = await mesh.claim(session.session_id)
    await finalize(mesh, transcript, held)
    everything = [shown(one) for one in await watched(mesh, session.session_id)]
    behind = [shown(one) for one in await watched(mesh, session.session_id, after_event=2, after_seq=2)]
    assert behind == [one for one in everything if one not in (*STATES[:2], *TASK)]
    assert everything[:5] == [*STATES, *TASK]
    assert everything[-2:] == [("state", "SUCCEEDED"), ("event", "CLOSED")]
    assert {kind for kind, *_ in everything[5:-2]} == {"entry"}


async def test_a_cursor_of_such_a_watch_keeps_its_beginning_until_the_first_entry(
    mesh: Mesh, transcript: Peer
) -> None:
    session = await mesh.spawn()
    held = await mesh.claim(session.session_id)
    async with watching(mesh, session.session_id, after_event=2, after_seq=2) as watch:
        assert await watch.next() == STATES[2]
        cursor = watch.cursor
    await finalize(mesh, transcript, held)
    rest = [shown(one) for one in await watched(mesh, session.session_id, cursor)]
    assert not {*TASK, *STATES} & {*rest}
    assert ("entry", 3, False) in rest


async def test_a_watch_that_ends_at_the_newest_reads_what_is_there_and_keeps_the_draft_open(
    mesh: Mesh, transcript: Peer
) -> None:
    session = await mesh.spawn()
    held = await mesh.claim(session.session_id)
    await acquire(transcript, held)
    first = await watched(mesh, session.session_id, ends_at_newest=True)
    assert [shown(one) for one in first] == [*STATES, *TASK]
    await finalize(mesh, transcript, held)
    second = await watched(mesh, session.session_id, first[-1].cursor, ends_at_newest=True)
    assert [shown(one) for one in second][-2:] == [("state", "SUCCEEDED"), ("event", "CLOSED")]


async def test_a_session_whose_spawn_failed_has_events_alone(mesh: Mesh, open_mesh: OpenMesh) -> None:
    async with open_mesh(elsewhere={"transcript": NOWHERE}) as away:
        away.tenant = mesh.tenant
        with pytest.raises(MeshError):
            await away.spawn(label="lost")
        request = session_service_pb2.ListSessionsRequest(filter="label = lost")
        (lost,) = (await away.client(away.sessions.ListSessions, request)).sessions
        messages = await watched(away, lost.session_id)
    assert [shown(one) for one in messages] == [("event", "PROVISIONING"), ("event", "SPAWN_FAILED")]


async def test_a_transcript_service_that_is_away_ends_the_stream_behind_the_states(
    mesh: Mesh, open_mesh: OpenMesh
) -> None:
    session = await mesh.spawn()
    async with open_mesh(elsewhere={"transcript": NOWHERE}) as away:
        away.tenant = mesh.tenant
        async with watching(away, session.session_id) as watch:
            assert await watch.many(2) == STATES[:2]
            with pytest.raises(MeshError) as caught:
                await watch.next()
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE


async def test_watches_leave_other_calls_and_tenants_places(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle streams on the connection of other calls would leave these no place."""
    await eventually(lambda: not is_reading())  # For a test before this one.
    monkeypatch.setattr(transcript_watches, "STREAMS_OF_CONNECTION", 2)
    busy, other = another(mesh), await mesh.spawn()
    await busy.create_tenant()
    session = await busy.spawn()
    async with AsyncExitStack() as stack:
        for _ in range(2 * transcript_watches.CONNECTIONS // 2):
            watch = await stack.enter_async_context(watching(busy, session.session_id))
            await watch.until(*TASK[-1])
        async with watching(busy, session.session_id) as refused:
            assert await refused.many(2) == STATES[:2]
            with pytest.raises(MeshError) as caught:
                await refused.next()
        async with watching(mesh, other.session_id) as watch:
            await watch.until(*TASK[-1])
        await busy.spawn()
    assert caught.value.reason is Reason.POOL_EXHAUSTED
    assert caught.value.retry_after_seconds

    async def has_place() -> bool:
        try:
            await watched(busy, session.session_id, ends_at_newest=True)
        except MeshError as error:
            if error.reason is not Reason.POOL_EXHAUSTED:
                raise
            return False
        return True

    await eventually(has_place)


async def test_a_session_that_is_deleted_ends_the_stream(mesh: Mesh) -> None:
    session = await mesh.spawn()
    async with watching(mesh, session.session_id) as watch:
        await watch.many(4)
        request = session_service_pb2.DeleteSessionRequest(session_id=session.session_id)
        await mesh.client(mesh.sessions.DeleteSession, request)
        with pytest.raises(MeshError) as caught:
            await watch.until("event", "CLOSED", "never")
    assert caught.value.reason is Reason.NOT_FOUND


async def test_a_reader_that_leaves_ends_what_was_read_for_it(mesh: Mesh) -> None:
    session = await mesh.spawn()
    for _ in range(5):
        async with watching(mesh, session.session_id) as watch:
            await watch.many(3)
            assert is_reading()
    await eventually(lambda: not is_reading())
