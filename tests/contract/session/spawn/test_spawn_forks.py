"""Spawns that begin with a copy of a session up to one of its entries."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_runtime.peers import Peer

from tests.support.serving import caller_at
from tests.support.session.calls import finalize, send
from tests.support.session.drafting import draft, entries_of
from tests.support.session.harness import Mesh, attachment
from tests.support.session.remains import Remains

FORK = session_pb2.CONTEXT_MODE_FORK


@pytest.fixture
async def transcript(peers: dict[str, str]) -> AsyncIterator[Peer]:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


def at(seq: int, session_id: str = "") -> session_pb2.ForkPoint:
    return session_pb2.ForkPoint(session_id=session_id, seq=seq)


async def refusal(call: Any) -> MeshError:
    with pytest.raises(MeshError) as caught:
        await call
    return caught.value


async def texts_of(mesh: Mesh, transcript: Peer, session_id: str) -> list[str]:
    entries = await entries_of(transcript, await mesh.claim(session_id))
    return [entry.body.message.content[0].text.text for entry in entries if entry.body.HasField("message")]


async def test_SpawnSession__forks_a_closed_session_without_its_files(mesh: Mesh, transcript: Peer) -> None:
    source = await mesh.spawn(task="first", attachments=[attachment()])
    held = await mesh.claim(source.session_id)
    await finalize(mesh, transcript, held, "42")
    seqs = [entry.seq for entry in await entries_of(transcript, held) if entry.body.HasField("message")]
    fork = await mesh.spawn(task="again", fork=at(seqs[0], source.session_id))
    assert (fork.context, fork.fork) == (FORK, at(seqs[0], source.session_id))
    assert (fork.parent_session_id, fork.HasField("receipt")) == ("", False)
    assert (await mesh.get(fork.session_id)).fork == fork.fork
    assert await texts_of(mesh, transcript, fork.session_id) == ["first", "again"]
    whole = await mesh.spawn(task="again", fork=at(seqs[1], source.session_id))
    assert await texts_of(mesh, transcript, whole.session_id) == ["first", "42", "again"]


async def test_SpawnSession__forks_the_parent_or_a_child_of_the_calling_run(
    mesh: Mesh, transcript: Peer
) -> None:
    root = await mesh.spawn(task="root", mode=session_pb2.SESSION_MODE_SESSION)
    held = await mesh.claim(root.session_id)
    await draft(transcript, held, "thought")
    fork = await mesh.spawn_as(held, task="child", context=FORK, fork=at(2))
    assert fork.fork == at(2, root.session_id)
    assert await texts_of(mesh, transcript, fork.session_id) == ["root", "child"]
    sibling = await mesh.spawn_as(held, task="sibling", fork=at(2, fork.session_id))
    assert await texts_of(mesh, transcript, sibling.session_id) == ["root", "sibling"]
    stranger = await mesh.spawn()
    error = await refusal(mesh.spawn_as(held, fork=at(2, stranger.session_id)))
    assert (error.reason, error.facts["resource"]) == (Reason.NOT_FOUND, "session")


async def test_SpawnSession__fork_that_is_refused_before_anything_is_created(
    mesh: Mesh, remains: Remains
) -> None:
    source, foreign = await mesh.spawn(), Mesh(mesh.peer, mesh.keys, mesh.settings)
    await foreign.create_tenant()
    theirs, gone = await foreign.spawn(), await mesh.spawn()
    await mesh.client(mesh.sessions.DeleteSession, pb.DeleteSessionRequest(session_id=gone.session_id))
    before = await remains.count(mesh.tenant, "session.sessions where delete_time is null")
    for session_id in (theirs.session_id, gone.session_id, new_id(IdKind.SESSION)):
        assert (await refusal(mesh.spawn(fork=at(2, session_id)))).reason is Reason.NOT_FOUND
    assert (await refusal(mesh.spawn(fork=at(2)))).reason is Reason.FORK_WITHOUT_PARENT
    for fields, field in (
        ({"fork": at(2, "nonsense")}, "fork.session_id"),
        ({"fork": at(0, source.session_id)}, "fork.seq"),
        ({"fork": at(2, source.session_id), "context": session_pb2.CONTEXT_MODE_ISOLATED}, "context"),
    ):
        error = await refusal(mesh.spawn(**fields))
        assert error.reason is Reason.INVALID_REQUEST
        assert [violation.field for violation in error.violations] == [field]
    assert await remains.count(mesh.tenant, "session.sessions where delete_time is null") == before


async def test_SpawnSession__fork_beyond_the_end_fails_and_stays_so(mesh: Mesh) -> None:
    source = await mesh.spawn()
    fields = {"request_id": "r", "fork": at(99, source.session_id)}
    for _ in range(2):
        error = await refusal(mesh.spawn(**fields))
        assert (error.reason, error.status) == (Reason.FORK_SEQ_REFUSED, Status.FAILED_PRECONDITION)
        assert error.facts == {"seq": "99", "last_seq": "2"}
    assert (await mesh.spawn(request_id="s", fork=at(2, source.session_id))).fork.seq == 2


async def test_SpawnSession__repeats_of_a_fork_are_one_session_whatever_comes_behind_the_entry(
    mesh: Mesh, transcript: Peer
) -> None:
    source = await mesh.spawn(task="first", mode=session_pb2.SESSION_MODE_SESSION)
    request = {"request_id": "r", "task": "again", "fork": at(2, source.session_id)}
    held = await mesh.claim(source.session_id)
    spawned, *_ = await asyncio.gather(
        mesh.spawn(**request), mesh.spawn(**request), finalize(mesh, transcript, held)
    )
    await send(mesh, source.session_id, "more")
    assert (await mesh.spawn(**request)).session_id == spawned.session_id
    assert await texts_of(mesh, transcript, spawned.session_id) == ["first", "again"]
    other = {**request, "fork": at(1, source.session_id)}
    assert (await refusal(mesh.spawn(**other))).reason is Reason.REQUEST_ID_REUSED
