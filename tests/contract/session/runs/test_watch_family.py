"""WatchSession with descendants: a session and those below it in one stream, under one cursor."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2, session_service_pb2
from spawnmesh.session.v1.session_service_pb2 import WatchSessionResponse
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.peers import Peer
from spawnmesh_session.operations import family_watch

from tests.support.serving import caller_at
from tests.support.session.calls import another, fail, finalize, kill, take_all
from tests.support.session.harness import Mesh
from tests.support.session.watching import acquire, by_session, shown, speak, watched, watching
from tests.support.waiting import eventually

FAMILY = {"with_descendants": True}
SPAWNED = ("event", "CHILD_SPAWNED")
CLOSED = ("event", "CLOSED")


@pytest.fixture
async def transcript(peers: dict[str, str]) -> AsyncIterator[Peer]:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


class Family:
    """A session whose run has spawned a child, whose run has spawned another one."""

    def __init__(self, mesh: Mesh, transcript: Peer, held: list[run_pb.ClaimedRun]) -> None:
        self.mesh, self.transcript, self.held = mesh, transcript, held
        self.ids = [one.session.session_id for one in held]

    async def end(self, member: int) -> None:
        """End the run with an answer, once it has read what its children announced."""
        held = self.held[member]

        async def is_accepted() -> bool:
            answer = await finalize(self.mesh, self.transcript, held, f"I am {member}.")
            if answer.HasField("messages_pending"):
                await take_all(self.mesh, held)
            return answer.HasField("accepted")

        await eventually(is_accepted)


async def spawn_family(mesh: Mesh, transcript: Peer) -> Family:
    held = [await mesh.claim((await mesh.spawn()).session_id)]
    for _ in range(2):
        child = await mesh.spawn_as(held[-1])
        held.append(await mesh.claim(child.session_id))
    for one in held:
        await acquire(transcript, one)
    return Family(mesh, transcript, held)


@pytest.fixture
async def family(mesh: Mesh, transcript: Peer) -> Family:
    return await spawn_family(mesh, transcript)


def children_in(messages: list[WatchSessionResponse]) -> dict[str, str]:
    """Return the child of each parent that the messages name."""
    return {
        one.session_id: one.session_event.child_session_id
        for one in messages
        if one.session_event.kind == session_pb2.SESSION_EVENT_KIND_CHILD_SPAWNED
    }


async def test_descendants_are_followed_from_their_spawn_until_all_have_ended(family: Family) -> None:
    top, child, grandchild = family.ids
    async with watching(family.mesh, top, **FAMILY) as watch:
        seen = [await watch.next_message() for _ in range(3 * 5 + 2)]
        # The child speaks, ends and comes before its parent's end, which nobody waited for.
        await speak(family.transcript, family.held[1], "I am", after_seq=2)
        delta = await watch.next_message()
        assert (delta.session_id, shown(delta)) == (child, ("delta", "I am", True))
        for member in (2, 1, 0):
            await family.end(member)
        while len([one for one in seen if shown(one) == CLOSED]) < 3:
            seen.append(await watch.next_message())
        with pytest.raises(StopAsyncIteration):
            await watch.next_message()
    assert children_in(seen) == {top: child, child: grandchild}
    order = [one.session_id for one in seen]
    spawns = {one.session_event.child_session_id: n for n, one in enumerate(seen) if shown(one) == SPAWNED}
    assert all(order.index(session_id) > spawns[session_id] for session_id in (child, grandchild))
    for events, entries in by_session(seen).values():
        assert events[-1].kind == session_pb2.SESSION_EVENT_KIND_CLOSED
        assert events[-2].run_state == session_pb2.RUN_STATE_SUCCEEDED
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))


@pytest.mark.parametrize("with_transcript", [True, False])
async def test_every_cursor_continues_with_exactly_the_rest_of_each_session(
    family: Family, with_transcript: bool
) -> None:
    await family.end(1)
    what: dict[str, Any] = {**FAMILY, "with_transcript": with_transcript}
    begun = await watched(family.mesh, family.ids[0], ends_at_newest=True, **what)
    for member in (0, 2):
        await family.end(member)
    everything = begun + await watched(family.mesh, family.ids[0], begun[-1].cursor, **what)
    whole = by_session(everything)
    assert by_session(await watched(family.mesh, family.ids[0], **what)) == whole
    assert len(whole) == 3
    for place, message in enumerate(everything, 1):
        rest = await watched(family.mesh, family.ids[0], message.cursor, **what)
        assert by_session(everything[:place] + rest) == whole, place


async def test_a_child_that_is_deleted_has_ended(family: Family) -> None:
    top, child, _ = family.ids
    async with watching(family.mesh, top, **FAMILY) as watch:
        for _ in range(3 * 5 + 2):
            await watch.next_message()
        await speak(family.transcript, family.held[1], "I am", after_seq=2)
        delta = await watch.next_message()
        request = session_service_pb2.DeleteSessionRequest(session_id=child)
        await family.mesh.client(family.mesh.sessions.DeleteSession, request)
        await fail(family.mesh, family.held[0])
        rest = [delta, *[message async for message in watch.rest()]]
    assert shown(rest[-1]) == CLOSED
    of_child = [shown(one)[0] for one in rest if one.session_id == child]
    assert of_child[0] == "delta"
    assert of_child.count("retracted") == 1
    behind = await watched(family.mesh, top, delta.cursor, **FAMILY)
    assert {one.session_id for one in behind} == {top, child}


async def test_the_deletion_of_the_family_ends_a_watch_whose_session_had_ended(family: Family) -> None:
    top = family.ids[0]
    await fail(family.mesh, family.held[0])
    async with watching(family.mesh, top, **FAMILY) as watch:
        await watch.until("event", "CLOSED")
        request = session_service_pb2.DeleteSessionRequest(session_id=top)
        await family.mesh.client(family.mesh.sessions.DeleteSession, request)
        with pytest.raises(MeshError) as caught:
            await watch.until("never")
        assert caught.value.reason is Reason.NOT_FOUND
        with pytest.raises(MeshError) as caught:
            await watched(family.mesh, top, watch.cursor, **FAMILY)
    assert caught.value.reason is Reason.NOT_FOUND


async def test_the_last_cursor_of_a_session_that_was_deleted_is_not_found(mesh: Mesh) -> None:
    session_id = (await mesh.spawn()).session_id
    await kill(mesh, session_id)
    last = (await watched(mesh, session_id))[-1].cursor
    assert await watched(mesh, session_id, last) == []
    request = session_service_pb2.DeleteSessionRequest(session_id=session_id)
    await mesh.client(mesh.sessions.DeleteSession, request)
    with pytest.raises(MeshError) as caught:
        await watched(mesh, session_id, last)
    assert caught.value.reason is Reason.NOT_FOUND


async def test_a_run_watches_its_own_family_and_no_cursor_leads_out_of_it(family: Family, mesh: Mesh) -> None:
    top, child, grandchild = family.ids
    stranger = await mesh.spawn()
    token = family.held[1].run_token
    seen = await watched(mesh, child, token=token, ends_at_newest=True, **FAMILY)
    assert {one.session_id for one in seen} == {child, grandchild}
    with pytest.raises(MeshError) as caught:
        await watched(mesh, top, token=token, ends_at_newest=True)
    assert caught.value.reason is Reason.NOT_FOUND
    for other in (top, stranger.session_id):
        forged = changed(
            seen[0].cursor, lambda parts, other=other: parts[-1].append([other, 0, "", "", 0, ""])
        )
        seen_then = await watched(mesh, child, forged, token=token, ends_at_newest=True, **FAMILY)
        assert {one.session_id for one in seen_then} <= {child, grandchild}


async def test_a_cursor_leads_to_no_session_of_another_tenant(family: Family, mesh: Mesh) -> None:
    other = another(mesh)
    await other.create_tenant()
    own = await other.spawn()
    (first, *_) = await watched(other, own.session_id, ends_at_newest=True, **FAMILY)
    forged = changed(first.cursor, lambda parts: parts[-1].append([family.ids[0], 0, "", "", 0, ""]))
    seen = await watched(other, own.session_id, forged, ends_at_newest=True, **FAMILY)
    assert {one.session_id for one in seen} == {own.session_id}
    with pytest.raises(MeshError) as caught:
        await watched(other, family.ids[0], ends_at_newest=True, **FAMILY)
    assert caught.value.reason is Reason.NOT_FOUND


def changed(cursor: str, change: Callable[[list[Any]], object]) -> str:
    """Return the cursor with this change of its parts."""
    parts = json.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    change(parts)
    return urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


async def test_a_cursor_of_another_watch_is_refused_and_so_is_a_beginning_with_one(mesh: Mesh) -> None:
    session, other = await mesh.spawn(), await mesh.spawn()
    kinds = [
        {"with_transcript": transcript, "with_descendants": descendants}
        for transcript in (False, True)
        for descendants in (False, True)
    ]
    cursors = [
        (kind, (await watched(mesh, one, ends_at_newest=True, **kind))[0].cursor, one)
        for kind in kinds
        for one in (session.session_id, other.session_id)
    ]
    for kind in kinds:
        for made_by, cursor, of in cursors:
            if (made_by, of) != (kind, session.session_id):
                await refuses(mesh, session.session_id, "cursor", cursor=cursor, **kind)
    own = cursors[0][1]
    strange = [1.5, "1", True, None, -1, 2**63, 1e300, [], {}]
    members: list[Any] = ["x", [], [1, 1, 1, 1, 1, 1], [session.session_id, 1, "", ""]]
    for one in strange:
        members += [[session.session_id, one, "", "", 0, ""], [session.session_id, 0, "", "", one, ""]]
    forged = [changed(own, lambda parts, one=one: parts[-1].append(one)) for one in members]
    for broken in ("x", "W10", own[:-2], own + "!", "[" * 5000, *forged):
        await refuses(mesh, session.session_id, "cursor", cursor=broken, **kinds[0])
    for name in ("after_event", "after_seq"):
        await refuses(mesh, session.session_id, name, cursor=own, **kinds[0], **{name: 1})
        await refuses(mesh, session.session_id, name, **FAMILY, **{name: 1})


async def refuses(mesh: Mesh, session_id: str, field: str, **fields: Any) -> None:
    with pytest.raises(MeshError, match=field) as caught:
        await watched(mesh, session_id, ends_at_newest=True, **fields)
    assert caught.value.reason is Reason.INVALID_REQUEST


async def test_a_family_that_is_too_large_to_follow_is_refused(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family_watch, "MAX_MEMBERS", 3)
    monkeypatch.setattr(family_watch, "_HELD_SECONDS", 0.5)
    await watched(family.mesh, family.ids[0], ends_at_newest=True, **FAMILY)
    await family.mesh.spawn_as(family.held[0])
    with pytest.raises(MeshError, match="at most 3 sessions") as caught:
        await watched(family.mesh, family.ids[0], **FAMILY)
    assert caught.value.reason is Reason.INVALID_REQUEST


@pytest.mark.parametrize("with_transcript", [True, False])
async def test_children_that_have_ended_leave_their_places_to_others(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch, with_transcript: bool
) -> None:
    monkeypatch.setattr(family_watch, "MAX_MEMBERS", 3)
    top = await mesh.claim((await mesh.spawn()).session_id)
    children = []
    for _ in range(8):
        children.append((await mesh.spawn_as(top)).session_id)
        await kill(mesh, children[-1])
    await fail(mesh, top)
    what: dict[str, Any] = {**FAMILY, "with_transcript": with_transcript}
    everything = await watched(mesh, top.session.session_id, **what)
    assert {one.session_id for one in everything} == {top.session.session_id, *children}
    for place in range(0, len(everything), 7):
        rest = await watched(mesh, top.session.session_id, everything[place].cursor, **what)
        assert by_session(everything[: place + 1] + rest) == by_session(everything), place
