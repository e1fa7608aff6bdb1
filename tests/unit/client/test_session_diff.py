"""`mesh.diff`, with services in this process and with the mesh in memory."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.session.v1 import session_pb2
from spawnmesh_client import Attachment, EntryKind, Mesh, NotFound, Role, SessionDiff, connect, sync
from spawnmesh_client import testing as in_memory
from spawnmesh_client.views import ForkPoint
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.client.diff_entries import (
    answer,
    final,
    header,
    note,
    seqs_of,
    superseded,
    transcript,
    user,
)
from tests.support.command.fake_mesh import SESSION_ID, FakeMesh, mesh, session_in, unset

__all__ = ["mesh", "unset"]

FORK_ID = new_id(IdKind.SESSION)


@pytest.fixture
async def client(mesh: FakeMesh, keys: Path) -> AsyncIterator[Mesh]:
    token = TokenMinter("client", keys / "client.pem").client_token("acme", "test", 60)
    async with connect(targets=mesh.targets, token=token) as connected:
        yield connected


def serve(mesh: FakeMesh, **fork: Any) -> None:
    """Serve a session and another one that has a copy of its messages up to entry 6."""
    source = session_in(session_pb2.RUN_STATE_SUCCEEDED, "yes")
    mesh.sessions.known = [source, session_pb2.Session(session_id=FORK_ID, **fork)]
    mesh.transcript.of_sessions[SESSION_ID] = transcript(
        header(), note("files"), user("q"), answer("no"), superseded(), answer("yes"), final(), user("more")
    )
    mesh.transcript.of_sessions[FORK_ID] = transcript(
        header(SESSION_ID), user("q"), answer("yes"), user("go on")
    )


FORK = session_pb2.ForkPoint(session_id=SESSION_ID, seq=6)
LIKE_A_FORK = {"parent_session_id": SESSION_ID, "context": session_pb2.CONTEXT_MODE_FORK}


@pytest.mark.parametrize("fork", [{"fork": FORK}, LIKE_A_FORK], ids=["at an entry", "of the parent"])
async def test_fork_differs_behind_its_copy(mesh: FakeMesh, client: Mesh, fork: dict[str, Any]) -> None:
    serve(mesh, **fork)
    found = await client.diff(SESSION_ID, FORK_ID)
    mirrored = await client.diff(FORK_ID, await client.session(SESSION_ID))

    point = ForkPoint(SESSION_ID, 6) if "fork" in fork else None
    assert (found.forked_at, mirrored.forked_at) == (point, point)
    assert (found.common_count, found.common_message_count) == (2, 2)
    assert (found.common_seq_a, found.common_seq_b, found.left_out_count) == (6, 3, 0)
    ((theirs,), (own,)) = found.only_a, found.only_b
    assert (theirs.seq, theirs.text, own.seq, own.text) == (8, "more", 4, "go on")
    assert (own.kind, own.role) == (EntryKind.MESSAGE, Role.USER)
    assert (found.is_equal, found.is_cut) == (False, False)
    assert (found.answer_a, found.answer_b) == ("yes", "")
    assert (mirrored.only_a, mirrored.only_b) == (found.only_b, found.only_a)
    assert (mirrored.session_id_a, mirrored.answer_b) == (FORK_ID, "yes")


async def test_sessions_that_are_no_forks_differ_from_the_first_entry_on(
    mesh: FakeMesh, client: Mesh
) -> None:
    serve(mesh)
    found = await client.diff(SESSION_ID, FORK_ID, max_entries=2)
    assert (found.common_count, found.forked_at) == (0, None)
    assert (seqs_of(found.only_a), found.is_cut_a) == ([2, 3], True)
    assert (seqs_of(found.only_b), found.is_cut_b) == ([2, 3], True)
    with pytest.raises(ValueError, match="-1"):
        await client.diff(SESSION_ID, FORK_ID, max_entries=-1)


async def test_forks_of_a_third_session_name_the_first_entry(mesh: FakeMesh, client: Mesh) -> None:
    third = new_id(IdKind.SESSION)
    one, other = (session_pb2.ForkPoint(session_id=third, seq=seq) for seq in (9, 4))
    serve(mesh, fork=other)
    mesh.sessions.known[0].fork.CopyFrom(one)
    assert (await client.diff(SESSION_ID, FORK_ID)).forked_at == ForkPoint(third, 4)


async def test_sessions_without_entries_are_equal(mesh: FakeMesh, client: Mesh) -> None:
    serve(mesh, fork=FORK)
    mesh.transcript.missing = {SESSION_ID}
    found = await client.diff(SESSION_ID, FORK_ID)
    assert (found.common_count, found.only_a, len(found.only_b)) == (0, (), 3)
    mesh.transcript.missing = {SESSION_ID, FORK_ID}
    assert (await client.diff(SESSION_ID, FORK_ID)).is_equal


async def test_pages_of_both_are_read_in_turn(mesh: FakeMesh, client: Mesh) -> None:
    """A difference at the beginning costs a page of each, and the pages of what is shown."""
    serve(mesh)
    mesh.transcript.of_sessions = {
        session_id: transcript(header(), *(user(f"{session_id} {number}") for number in range(1000)))
        for session_id in ("a", "b")
    }
    first, second = mesh.transcript.of_sessions.values()
    first[1].body.message.content[0].text.text = "differs"
    mesh.transcript.of_sessions = {SESSION_ID: first, FORK_ID: second}
    assert (await client.diff(SESSION_ID, FORK_ID, max_entries=100)).is_cut
    assert mesh.transcript.pages == 2


async def test_unknown_session_is_not_found(mesh: FakeMesh, client: Mesh) -> None:
    serve(mesh)
    for pair in ((SESSION_ID, new_id(IdKind.SESSION)), (new_id(IdKind.SESSION), SESSION_ID)):
        with pytest.raises(NotFound):
            await client.diff(*pair)


async def test_mesh_in_memory_compares_its_sessions() -> None:
    mesh = in_memory.FakeMesh()
    mesh.answers("42", "43", "42")
    first, second, third = [
        await mesh.spawn("How many?", attachments=[Attachment("a.txt", b"1")]) for _ in range(3)
    ]
    for session in (first, second, third):
        await session.result()
    found = await mesh.diff(first, second)
    assert (found.common_count, found.common_message_count) == (2, 1)
    assert ([one.text for one in found.only_a], [one.text for one in found.only_b]) == (["42"], ["43"])
    assert (found.answer_a, found.answer_b) == ("42", "43")
    assert (await mesh.diff(first, third)).is_equal


def test_blocking_form_takes_sessions() -> None:
    fake = in_memory.FakeMesh()
    fake.answers("a", "b")
    with sync.blocking(fake) as mesh:
        one, other = mesh.spawn("x"), mesh.spawn("x")
        one.result()
        other.result()
        found = mesh.diff(one, other.session_id)
    assert isinstance(found, SessionDiff)
    assert (found.answer_a, found.answer_b) == ("a", "b")
