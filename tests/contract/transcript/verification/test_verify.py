"""VerifyTranscript finds each change that an attacker with database access makes, and no other."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from threading import Event
from typing import LiteralString

import pytest
from spawnmesh.transcript.v1 import activity_service_pb2 as activity_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.transcript.activities import recorded
from tests.support.transcript.bodies import (
    assistant,
    bash,
    call_block,
    extension,
    mirror,
    note,
    result,
    superseded,
    user,
)
from tests.support.transcript.files import HEADER, file_of, message, send
from tests.support.transcript.fixtures import Session, refused
from tests.support.transcript.forgery import Forger
from tests.support.transcript.tables import Superuser
from tests.support.transcript.verifying import intact, mismatch, verification

SPAWN = json.dumps(
    {"type": "toolUse", "name": "sessions_spawn", "input": {"attachments": [{"name": "a", "content": "x"}]}}
)
LARGE = 3_000_000


@pytest.fixture
async def forger(session: Session, superuser: Superuser) -> Forger:
    """A transcript of eight entries: header, task, call, result, draft, mark on it, answer, and a
    note of the session service."""
    claim = await session.acquire(1)
    await session.append([user("task")])
    await session.append([assistant("call", "c")], claim=claim)
    draft = await session.append([result("c", "done"), assistant("draft")], claim=claim)
    await session.append([superseded(draft.entries[1].entry_id), assistant("answer")], claim=claim)
    await session.append([note("end")])
    return Forger(superuser, session)


async def _set(forger: Forger, seq: int, change: LiteralString) -> None:
    await forger.execute(
        "update entries set " + change + " where tenant_id = %(tenant)s and session_id = %(session)s"
        " and seq = %(seq)s",
        seq=seq,
    )


def _setting(seq: int, change: LiteralString) -> Callable[[Forger], Awaitable[None]]:
    return lambda forger: _set(forger, seq, change)


async def _move(forger: Forger, seq: int, to: int) -> None:
    await _set(forger, seq, f"seq = {to}")  # type: ignore[arg-type]


async def _rewrite(forger: Forger) -> None:
    await forger.set_body(4, result("c", "failed").SerializeToString(deterministic=True))


async def _swap_rows(forger: Forger) -> None:
    for seq, to in ((3, 99), (7, 3), (99, 7)):
        await _move(forger, seq, to)


async def _swap_all_but_hashes(forger: Forger) -> None:
    hashes = await forger.execute(
        "select seq, chain_hash from entries where tenant_id = %(tenant)s and session_id = %(session)s"
    )
    await _swap_rows(forger)
    for seq, chain_hash in hashes:
        await forger.execute(
            "update entries set chain_hash = %(chain_hash)s where tenant_id = %(tenant)s"
            " and session_id = %(session)s and seq = %(seq)s",
            seq=seq,
            chain_hash=chain_hash,
        )


async def _swap_bodies(forger: Forger) -> None:
    await forger.execute(
        """
        update entries e set body = other.body from entries other
        where e.tenant_id = %(tenant)s and e.session_id = %(session)s
            and other.tenant_id = %(tenant)s and other.session_id = %(session)s
            and (e.seq, other.seq) in ((5, 7), (7, 5))
        """
    )


async def _delete_and_close_the_gap(forger: Forger) -> None:
    await forger.delete(4)
    for seq in range(5, 9):
        await _move(forger, seq, seq - 1)
    await forger.execute(
        "update transcripts set seq = 7 where tenant_id = %(tenant)s and session_id = %(session)s"
    )


async def _insert_behind_the_head(forger: Forger) -> None:
    ((seq, chain_hash),) = await forger.execute(
        "select seq, chain_hash from transcripts where tenant_id = %(tenant)s and session_id = %(session)s"
    )
    await forger.insert(assistant("more").SerializeToString(deterministic=True), kind="MESSAGE")
    await forger.set_head(seq, chain_hash)


async def _take_rows_of_a_sibling(forger: Forger) -> None:
    """Give the transcript the entries and the head of another one of the tenant."""
    sibling = forger.session.sibling()
    await sibling.create()
    await forger.delete(*range(1, 9))
    await forger.execute(
        "update entries set session_id = %(session)s where tenant_id = %(tenant)s and session_id = %(other)s",
        other=sibling.session_id,
    )
    ((chain_hash,),) = await forger.execute(
        "select chain_hash from entries where tenant_id = %(tenant)s and session_id = %(session)s"
    )
    await forger.set_head(1, chain_hash)


ATTACKS: dict[str, tuple[Callable[[Forger], Awaitable[None]], int, str]] = {
    "a body in place": (_rewrite, 4, "CONTENT"),
    "the newest body": (lambda forger: forger.set_body(8, b""), 8, "CONTENT"),
    "the header": (lambda forger: forger.set_body(1, b"\xff"), 1, "CONTENT"),
    "a hash": (_setting(3, "chain_hash = sha256('x')"), 3, "CONTENT"),
    "the writer's run": (_setting(3, "writer_run_id = ''"), 3, "CONTENT"),
    "the writer's epoch": (_setting(3, "writer_epoch = 7"), 3, "CONTENT"),
    "the writing service": (_setting(2, "writer_service = 'hook'"), 2, "CONTENT"),
    "the writing client": (_setting(2, "writer_client = 'gateway'"), 2, "CONTENT"),
    "the time": (_setting(5, "create_time = create_time + interval '1 microsecond'"), 5, "CONTENT"),
    "an id": (_setting(5, "entry_id = 'ent_1'"), 5, "CONTENT"),
    "a parent": (_setting(5, "parent_entry_id = ''"), 5, "CONTENT"),
    "the role": (_setting(3, "role = 'USER'"), 3, "METADATA"),
    "no role": (_setting(3, "role = ''"), 3, "METADATA"),
    "the kind": (_setting(2, "kind = 'NOTE'"), 2, "METADATA"),
    "the calls": (_setting(3, "calls = '{}'"), 3, "METADATA"),
    "the answered call": (_setting(4, "answers = 'd'"), 4, "METADATA"),
    "a result that is synthetic": (_setting(4, "is_synthetic = true"), 4, "METADATA"),
    "a label": (_setting(6, "label = 'FINAL'"), 6, "METADATA"),
    "no label": (_setting(6, "label = '', target_seq = null"), 6, "METADATA"),
    "the target of a label": (_setting(6, "target_seq = 7"), 6, "METADATA"),
    "two entries swapped": (_swap_rows, 3, "ORDER"),
    "two entries swapped under the old hashes": (_swap_all_but_hashes, 3, "ORDER"),
    "two bodies swapped": (_swap_bodies, 5, "CONTENT"),
    "the first deleted": (lambda forger: forger.delete(1), 1, "MISSING"),
    "one in the middle deleted": (lambda forger: forger.delete(4), 4, "MISSING"),
    "one deleted, and the gap closed": (_delete_and_close_the_gap, 4, "MISSING"),
    "the last deleted": (lambda forger: forger.delete(8), 8, "MISSING"),
    "the last two deleted": (lambda forger: forger.delete(7, 8), 7, "MISSING"),
    "one behind the head": (_insert_behind_the_head, 9, "HEAD"),
    "the head's hash": (lambda forger: forger.set_head(8, bytes(32)), 8, "HEAD"),
    "another transcript": (_take_rows_of_a_sibling, 1, "METADATA"),
    "a body said to be in the blob store": (_setting(4, "dropped_bytes = 1"), 4, "PAYLOAD"),
}


@pytest.mark.parametrize("name", list(ATTACKS))
async def test_VerifyTranscript__finds_a_change_of(forger: Forger, name: str) -> None:
    attack, seq, cause = ATTACKS[name]
    await intact(forger.session)
    await attack(forger)
    assert await mismatch(forger.session) == (seq, cause)


async def test_VerifyTranscript__a_rewritten_chain_is_found_from_a_kept_position(forger: Forger) -> None:
    session = forger.session
    kept = await intact(session)
    await session.append([note("later")])
    await _rewrite(forger)
    await forger.rechain()
    await intact(session)
    assert await mismatch(session, after=kept) == (8, "CHECKPOINT")


async def test_VerifyTranscript__a_truncated_transcript_is_found_from_a_kept_position(forger: Forger) -> None:
    kept = await intact(forger.session)
    await forger.delete(7, 8)
    await forger.rechain()
    await intact(forger.session)
    assert await mismatch(forger.session, after=kept) == (7, "MISSING")
    await forger.session.create_anew()
    assert await mismatch(forger.session, after=kept) == (1, "CHECKPOINT")


async def test_VerifyTranscript__from_a_position_checks_its_entry_and_those_behind_it(forger: Forger) -> None:
    session = forger.session
    head = (await session.page()).head
    entries = await session.entries()
    third = pb.Fence(incarnation=head.incarnation, seq=3, chain_hash=entries[2].chain_hash)
    assert (await intact(session, after=third)).seq == 8
    await _rewrite(forger)
    assert await mismatch(session, after=third) == (4, "CONTENT")
    fourth = pb.Fence(incarnation=head.incarnation, seq=4, chain_hash=entries[3].chain_hash)
    assert await mismatch(session, after=fourth) == (4, "CONTENT")
    fifth = pb.Fence(incarnation=head.incarnation, seq=5, chain_hash=entries[4].chain_hash)
    assert (await intact(session, after=fifth)).seq == 8
    await forger.delete(5)
    assert await mismatch(session, after=fifth) == (5, "MISSING")


async def test_VerifyTranscript__entries_of_every_writer_and_kind_are_intact(session: Session) -> None:
    """Also those that the service changed before it stored them."""
    await session.prepare_tenant(1, mask_secrets=True)
    claim = await session.acquire(1)
    spawning = assistant("spawn")
    spawning.message.content.append(call_block("s", SPAWN, " sessions_spawn "))
    secret = user("password = hunter2hunter2hunter2 sk-ant-api03-" + "a" * 40)
    await session.append([secret])
    await session.append([spawning, bash("ls", "a"), extension("e"), note("n")], claim=claim)
    await session.append([mirror("m")], token=session.mirror_token())
    assert "$redacted" in str(await session.entries())
    assert (await intact(session)).seq == 7
    fork = session.sibling()
    await fork.create(fork_of=session)
    await fork.append([user("go on")])
    await intact(fork)
    imported = session.sibling()
    lines = [
        {"type": "model_change", "id": "c1", "parentId": "m2", "model": "p/m"},
        {"type": "label", "id": "l1", "parentId": "c1", "targetId": "m1", "label": "mine"},
        {"type": "of my own", "id": "o1", "parentId": "l1"},
        {**message(9), "parentId": "m1"},
    ]
    await send(imported, file_of(HEADER, message(1), message(2, "assistant"), *lines))
    await intact(imported)


async def test_VerifyTranscript__streams_positions_over_pages(forger: Forger) -> None:
    """A page ends after 500 entries or 4 MiB, and a caller may begin at each position."""
    session, claim = forger.session, await forger.session.acquire(2)
    for _ in range(4):
        await session.append([assistant(str(number)) for number in range(250)], claim=claim)
    for _ in range(2):
        await session.append([assistant("x" * LARGE)], claim=claim)
    responses = await verification(session)
    reached = [one.verified if one.HasField("verified") else one.intact for one in responses]
    assert [position.seq for position in reached] == [500, 1000, 1009, 1010]
    for position in reached:
        [entry] = await session.entries(after_seq=position.seq - 1, page_size=1)
        assert entry.chain_hash == position.chain_hash
    await _set(forger, 1009, "writer_epoch = 7")
    assert [one.verified.seq for one in (await verification(session, after=reached[0]))[:-1]] == [1000]
    assert await mismatch(session, after=reached[1]) == (1009, "CONTENT")


async def test_VerifyTranscript__is_for_readers(session: Session) -> None:
    child = session.sibling()
    await child.create(child_of=session)
    token = session.run_token(pb.WriterClaim(run_id=new_id(IdKind.RUN), epoch=1))
    for readable in (session, child):
        assert (await verification(readable, token=token))[-1].HasField("intact")
    stranger = session.sibling()
    await stranger.create()
    foreign = session.service.session()
    for hidden, caller in ((stranger, token), (session, foreign.client_token()), (session.sibling(), "")):
        with refused(Reason.NOT_FOUND):
            await verification(hidden, token=caller)
    with refused(Reason.CALLER_NOT_ALLOWED):
        await verification(session, token=session.service_token())


async def test_body_that_cannot_be_read_is_a_loss_of_data(forger: Forger) -> None:
    await forger.set_body(4, b"\xff")
    for read in (forger.session.entries(), forger.session.context()):
        with refused(Reason.STORED_HASH_DIFFERS):
            await read
    assert len(await forger.session.entries(after_seq=4)) == 4


async def test_mismatch_is_recorded_and_the_transcript_is_still_served(forger: Forger) -> None:
    session = forger.session
    await _rewrite(forger)
    before = await session.entries()
    assert await mismatch(session) == (4, "CONTENT")
    assert await session.entries() == before
    [failed] = await recorded(session, 1)
    assert (failed.session_id, failed.failed) == (
        session.session_id,
        activity_pb.Failed(action=activity_pb.FAILED_ACTION_VERIFY, reason="STORED_HASH_DIFFERS", seq=4),
    )


async def test_VerifyTranscript__has_threads_of_its_own(session: Session) -> None:
    """All threads that the calls of the process share are taken meanwhile."""
    claim = await session.acquire(1)
    await session.append([user("x" * 100_000), user("y" * 100_000)])
    await session.append([assistant("z" * 100_000)], claim=claim)
    release = Event()
    loop = asyncio.get_running_loop()
    taken = [loop.run_in_executor(None, release.wait, 120) for _ in range(64)]
    try:
        async with asyncio.timeout(60):
            await intact(session)
    finally:
        release.set()
        await asyncio.gather(*taken)
