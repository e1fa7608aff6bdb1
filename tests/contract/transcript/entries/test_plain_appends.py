"""Plain appends, which one statement makes: the same rows as `append_waiting` writes, and
untouched rows if a rule refuses one."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import psycopg
import pytest
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_transcript.domain.appends import Append, AppendOutcome, AppendResult
from spawnmesh_transcript.domain.entries import EntryKind, NewEntry, WriterClaim
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.turns import Role
from spawnmesh_transcript.domain.writers import Writer
from spawnmesh_transcript.operations.append_queue import open_append_queue
from spawnmesh_transcript.store import appends as append_store
from spawnmesh_transcript.store.appends import append_batch

from tests.support.transcript.fixtures import (
    Service,
    Session,
    assistant,
    waits_for,
)
from tests.support.transcript.stored_rows import check_chain_of, check_totals, stored_rows
from tests.support.transcript.tables import Superuser


def _append(session: Session, claim: pb.WriterClaim, *, key: str = "", body: bytes = b"") -> Append:
    body = body or secrets.token_bytes(16)
    entry = NewEntry(EntryKind.MESSAGE, body, token_count=3, role=Role.ASSISTANT)
    writer = Writer(claim=WriterClaim(claim.run_id, claim.epoch))
    return Append(
        Key(session.tenant_id, session.session_id), (entry,), key or secrets.token_hex(8), body, writer, 0
    )


def _drawn(random: Random, kind: EntryKind, role: Role | None) -> NewEntry:
    """Generate an entry that refers to no other, with any values that it may have."""
    return NewEntry(
        kind,
        random.randbytes(random.choice([0, 1, 300])),
        token_count=random.randrange(50),
        role=role,
        calls=tuple(f'call {n}, "quoted" {{}}' for n in range(random.randrange(3))),
        answers=random.choice(["", "call-1"]),
        is_synthetic=random.random() < 0.5,
        parent_entry_id=random.choice(["", new_id(IdKind.ENTRY)]),
        token_vocabulary=random.choice([*Vocabulary]),
    )


async def test_a_plain_append_stores_the_rows_of_a_general_append(
    session: Session, database: Database, superuser: Superuser
) -> None:
    seed = secrets.randbits(32)
    random = Random(seed)
    twin = session.sibling()
    await twin.create()
    # Two transcripts with the same history.
    twins = "update transcripts set chain_hash = 'x', newest_entry_id = 'ent_x' where tenant_id = %s"
    await superuser.execute(twins, (session.tenant_id,))
    claim = await session.acquire(3)
    await twin.acquire(3, run_id=claim.run_id)
    writers = [
        Writer(claim=WriterClaim(claim.run_id, 3)),
        Writer(service="session"),
        Writer(client="gateway"),
    ]
    for kind, role in product(EntryKind, [None, *Role]):
        if role is Role.NOTE:
            continue
        key, entry = secrets.token_hex(8), _drawn(random, kind, role)
        append = Append(
            Key(session.tenant_id, session.session_id),
            (entry,),
            key,
            random.randbytes(32),
            random.choice(writers),
            0,
        )
        (plain,) = await append_batch(database, session.tenant_id, [append])
        other = replace(append, key=Key(twin.tenant_id, twin.session_id))
        longer = await append_store.append_waiting(database, other)
        assert plain.head is not None
        assert longer.head is not None
        head = replace(
            longer.head, incarnation=plain.head.incarnation, chain_hash=plain.head.chain_hash
        )  # The hash covers the time.
        assert plain == replace(longer, head=head, entry_ids=plain.entry_ids), seed
        assert plain.head.incarnation != longer.head.incarnation
    mine, theirs = await stored_rows(superuser, session), await stored_rows(superuser, twin)
    for entries, _, (transcript,) in (mine, theirs):
        assert check_chain_of(entries[1:], previous=b"x") == transcript[1]
    assert _without_hashes(mine) == _without_hashes(theirs), seed
    assert len(mine[0]) == len(mine[1]) + 1


def _without_hashes(rows: list[list[Any]]) -> list[Any]:
    """Return the rows without the header, ids, times, and the hashes that cover them."""
    entries, keys, (transcript,) = rows
    return [
        [(row[0], *row[3:15], *row[16:19]) for row in entries[1:]],
        keys,
        (transcript[0], *transcript[3:]),
    ]


async def test_each_call_of_a_transaction_has_its_own_entry_or_none(
    session: Session, database: Database, superuser: Superuser
) -> None:
    sessions = [session, *(session.sibling() for _ in range(3))]
    for one in sessions[1:]:
        await one.create()
    claims = [await one.acquire(1) for one in sessions]
    appends = [_append(one, claim) for one, claim in zip(sessions, claims, strict=True)]
    appends[1] = replace(appends[1], writer=Writer(claim=WriterClaim(claims[0].run_id, 1)))
    outcomes = await append_batch(database, session.tenant_id, appends)
    assert [outcome.outcome for outcome in outcomes] == ["APPENDED", "CLAIM_LOST", "APPENDED", "APPENDED"]
    assert [await check_totals(superuser, one) for one in sessions] == [2, 1, 2, 2]
    for one, append in zip(sessions, appends, strict=True):
        bodies = [entry[16] for entry in (await stored_rows(superuser, one))[0][1:]]
        assert bodies == ([append.entries[0].body] if one is not sessions[1] else [])
    statement = "select count(distinct xmin::text) from entries where tenant_id = %s and seq > 1"
    assert await (await superuser.execute(statement, (session.tenant_id,))).fetchone() == (1,)


Break = Callable[[Session, Append, Superuser], Awaitable[Append]]


async def _used_key(session: Session, append: Append, superuser: Superuser) -> Append:
    by = append.writer.claim
    assert by is not None
    claim = pb.WriterClaim(run_id=by.run_id, epoch=by.epoch)
    done = await session.append([assistant("word")], claim=claim, key=append.request_id)
    statement = "select content_hash from appends where tenant_id = %s and first_seq = %s"
    row = await (await superuser.execute(statement, (session.tenant_id, done.entries[0].seq))).fetchone()
    assert row is not None
    return replace(append, content_hash=row[0])


async def _other_content(session: Session, append: Append, superuser: Superuser) -> Append:
    return replace(await _used_key(session, append, superuser), content_hash=b"other")


async def _epoch(session: Session, append: Append, superuser: Superuser) -> Append:
    claim = append.writer.claim
    assert claim is not None
    return replace(append, writer=Writer(claim=WriterClaim(claim.run_id, claim.epoch + 1)))


async def _run(session: Session, append: Append, superuser: Superuser) -> Append:
    claim = append.writer.claim
    assert claim is not None
    return replace(append, writer=Writer(claim=WriterClaim(new_id(IdKind.RUN), claim.epoch)))


async def _settings(session: Session, append: Append, superuser: Superuser) -> Append:
    await session.prepare_tenant(4, mask_secrets=True)
    return append


async def _no_settings(session: Session, append: Append, superuser: Superuser) -> Append:
    return replace(append, settings_version=4)


async def _deleted(session: Session, append: Append, superuser: Superuser) -> Append:
    await session.delete()
    return replace(append, writer=Writer(service="session"))


async def _nowhere(session: Session, append: Append, superuser: Superuser) -> Append:
    return replace(append, key=Key(session.tenant_id, new_id(IdKind.SESSION)))


async def _purging(session: Session, append: Append, superuser: Superuser) -> Append:
    await superuser.execute("insert into purged_tenants values (%s, 0)", (session.tenant_id,))
    return append


async def _others(session: Session, append: Append, superuser: Superuser) -> Append:
    stranger = session.service.session()
    await stranger.create()
    return replace(append, key=Key(session.tenant_id, stranger.session_id), writer=Writer(service="session"))


_REFUSED: dict[str, tuple[Break, str, str]] = {
    "a key that was used": (_used_key, "BUSY", "REPLAYED"),
    "a key that was used for something else": (_other_content, "BUSY", "KEY_REUSED"),
    "an epoch that was never given": (_epoch, "CLAIM_LOST", "CLAIM_LOST"),
    "another run": (_run, "CLAIM_LOST", "CLAIM_LOST"),
    "settings that changed": (_settings, "SETTINGS_CHANGED", "SETTINGS_CHANGED"),
    "settings that there are none of": (_no_settings, "SETTINGS_CHANGED", "SETTINGS_CHANGED"),
    "a transcript that was deleted": (_deleted, "BUSY", "NOT_FOUND"),
    "a transcript that never was": (_nowhere, "BUSY", "NOT_FOUND"),
    "a tenant that is being purged": (_purging, "NOT_FOUND", "NOT_FOUND"),
    "a transcript of another tenant": (_others, "BUSY", "NOT_FOUND"),
}


@pytest.mark.parametrize("name", _REFUSED)
async def test_a_refused_append_writes_nothing_and_gets_the_reason(
    session: Session, database: Database, superuser: Superuser, name: str
) -> None:
    """In its own statement, or in the next one if that has to read more."""
    broken, first_answer, answer = _REFUSED[name]
    append = _append(session, await session.acquire(1))
    append = await broken(session, append, superuser)
    before = await stored_rows(superuser, session)
    (outcome,) = await append_batch(database, session.tenant_id, [append])
    assert outcome.outcome == first_answer
    async with open_append_queue(database, slots=1) as queue:
        assert (await queue.append(append)).outcome == answer
    assert (await append_store.append_waiting(database, append)).outcome == answer
    assert await stored_rows(superuser, session) == before


async def test_current_settings_do_not_refuse(session: Session, database: Database) -> None:
    await session.prepare_tenant(4, mask_secrets=True)
    append = replace(_append(session, await session.acquire(1)), settings_version=4)
    (outcome,) = await append_batch(database, session.tenant_id, [append])
    assert (outcome.outcome, outcome.first_seq) == ("APPENDED", 2)


@pytest.mark.parametrize("wrong", [{"kind": "NOBODY"}, {"role": "NOBODY"}], ids=["kind", "role"])
async def test_no_plain_entry_of_an_unknown_kind_is_stored(
    session: Session, database: Database, superuser: Superuser, wrong: dict[str, Any]
) -> None:
    append = _append(session, await session.acquire(1))
    append = replace(append, entries=(replace(append.entries[0], **wrong),))
    async with open_append_queue(database, slots=1) as queue:
        with pytest.raises(psycopg.errors.CheckViolation, match=r"entry_(kind|role)"):
            await queue.append(append)
    assert await check_totals(superuser, session) == 1


class _Cut(bytes):
    """A body that claims to be longer than it is."""

    def __len__(self) -> int:
        return super().__len__() + 1


async def test_no_body_shorter_than_its_size_is_stored(
    session: Session, database: Database, superuser: Superuser
) -> None:
    append = _append(session, await session.acquire(1), body=_Cut(b"lon"))
    with pytest.raises(ValueError, match="sizes"):
        await append_batch(database, session.tenant_id, [append])
    assert await check_totals(superuser, session) == 1


async def test_appends_to_one_transcript_share_a_call_and_have_their_own_heads(
    session: Session, database: Database, superuser: Superuser
) -> None:
    claim, other = await session.acquire(1), session.sibling()
    await other.create()
    first, third = _append(session, claim), _append(session, claim)
    (entry,) = _append(session, claim).entries
    second = replace(_append(session, claim), entries=(entry, replace(entry, body=b"second")))
    elsewhere = _append(other, await other.acquire(1))
    outcomes = await append_batch(database, session.tenant_id, [first, elsewhere, second, third])
    assert [outcome.outcome for outcome in outcomes] == ["APPENDED"] * 4
    assert [outcome.first_seq for outcome in outcomes] == [2, 2, 3, 5]
    for outcome, append in zip(outcomes, (first, elsewhere, second, third), strict=True):
        repeated = await append_store.append_waiting(database, append)
        assert repeated == replace(outcome, outcome=AppendOutcome.REPLAYED)
    entries, keys, (transcript,) = await stored_rows(superuser, session)
    assert [key[2:4] for key in keys] == [(2, 2), (3, 4), (5, 5)]
    assert outcomes[3].head
    assert check_chain_of(entries) == transcript[1] == outcomes[3].head.chain_hash
    assert await check_totals(superuser, other) == 2


async def test_a_used_key_leaves_the_appends_that_share_its_call_to_be_made_alone(
    session: Session, database: Database, superuser: Superuser
) -> None:
    claim = await session.acquire(1)
    used = _append(session, claim)
    await append_batch(database, session.tenant_id, [used])
    outcomes = await append_batch(database, session.tenant_id, [_append(session, claim), used])
    assert [outcome.outcome for outcome in outcomes] == ["BUSY", "BUSY"]
    assert await check_totals(superuser, session) == 2


async def test_one_key_is_not_used_twice_by_one_call(
    session: Session, database: Database, superuser: Superuser
) -> None:
    append = _append(session, await session.acquire(1))
    with pytest.raises(psycopg.errors.UniqueViolation):
        await append_batch(database, session.tenant_id, [append, append])
    assert await check_totals(superuser, session) == 1


@pytest.fixture
async def paused(superuser: Superuser) -> AsyncIterator[str]:
    """A key whose append waits in the middle of its statement until the superuser unlocks 34."""
    await superuser.execute("select pg_advisory_lock(34)")
    await superuser.execute("""
        create function pause() returns trigger language plpgsql as $$
        begin
            perform pg_advisory_xact_lock(34);
            return new;
        end
        $$;
        create trigger pause before insert on appends
            for each row when (new.request_id = 'paused') execute function pause();
    """)
    yield "paused"
    await superuser.execute("select pg_advisory_unlock_all()")
    await superuser.execute("drop function pause() cascade")


async def _appended(session: Session, claim: pb.WriterClaim, append: Append) -> None:
    for _ in range(3):
        await session.append([assistant("meanwhile")], claim=claim)


async def _key_taken(session: Session, claim: pb.WriterClaim, append: Append) -> None:
    await session.append([assistant("meanwhile")], claim=claim, key=append.request_id)


async def _taken_over(session: Session, claim: pb.WriterClaim, append: Append) -> None:
    await session.append([assistant("meanwhile")], claim=await session.acquire(2))


async def _gone(session: Session, claim: pb.WriterClaim, append: Append) -> None:
    await session.delete()


@pytest.mark.parametrize(
    ("meanwhile", "answer", "entry_count"),
    [(_appended, "APPENDED", 5), (_key_taken, "BUSY", 2), (_taken_over, "BUSY", 2), (_gone, "BUSY", 0)],
    ids=["appended", "used the key", "took over", "deleted"],
)
async def test_a_commit_after_the_snapshot_is_seen_by_the_statement_that_locks(
    session: Session,
    database: Database,
    superuser: Superuser,
    paused: str,
    meanwhile: Callable[[Session, pb.WriterClaim, Append], Awaitable[None]],
    answer: str,
    entry_count: int,
) -> None:
    """The statement has its snapshot and has locked the first transcript before the second is
    written."""
    other = session.sibling()
    await other.create()
    first = _append(session, await session.acquire(1), key=paused)
    claim = await other.acquire(1)
    second = _append(other, claim)
    making = asyncio.create_task(append_batch(database, session.tenant_id, [first, second]))
    while not await waits_for(superuser, superuser):
        assert not making.done()
        await asyncio.sleep(0.01)
    await meanwhile(other, claim, second)
    await superuser.execute("select pg_advisory_unlock(34)")
    outcomes = await making
    assert [outcome.outcome for outcome in outcomes] == ["APPENDED", answer]
    assert await check_totals(superuser, session) == 2
    if entry_count:
        assert await check_totals(superuser, other) == entry_count
        assert outcomes[1].first_seq == (entry_count if answer == "APPENDED" else 0)


async def test_replicas_that_write_the_same_transcripts_lose_and_repeat_nothing(
    session: Session, service: Service, superuser: Superuser
) -> None:
    sessions = [session, session.sibling(), session.sibling()]
    for one in sessions[1:]:
        await one.create()
    claims = [await one.acquire(1) for one in sessions]

    async def write(database: Database, first: int) -> list[AppendResult]:
        """Append to two of the three, at once or in sequence, until each has all its entries."""
        pair, made = [first % 3, (first + 1) % 3], []
        for _ in range(25):
            left = [_append(sessions[n], claims[n]) for n in pair]
            while left:
                outcomes = await append_batch(database, session.tenant_id, left)
                made += [outcome for outcome in outcomes if not outcome.is_busy]
                left = [append for append, outcome in zip(left, outcomes, strict=True) if outcome.is_busy]
        return made

    async with (
        asyncio.timeout(60),
        open_database(service.dsn.app, name="one", max_connections=3) as one,
        open_database(service.dsn.app, name="two", max_connections=3) as two,
    ):
        written = await asyncio.gather(*(write(database, n) for database in (one, two) for n in range(3)))
    made = [outcome for outcomes in written for outcome in outcomes]
    assert len(made) == 2 * 3 * 2 * 25
    assert sum([await check_totals(superuser, one) for one in sessions]) == len(made) + 3
    assert len({(outcome.head.incarnation, outcome.first_seq) for outcome in made if outcome.head}) == len(
        made
    )
