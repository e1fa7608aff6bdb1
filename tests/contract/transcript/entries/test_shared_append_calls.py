"""Appends that share a call of the database, and calls that meet at one transcript."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import psycopg
import pytest
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_transcript.domain.appends import Append, AppendOutcome, AppendResult
from spawnmesh_transcript.domain.entries import WriterClaim
from spawnmesh_transcript.domain.writers import Writer
from spawnmesh_transcript.store import appends as append_store
from spawnmesh_transcript.store.appends import append_batch

from tests.support.transcript.bodies import assistant
from tests.support.transcript.fixtures import Service, Session, waits_for
from tests.support.transcript.plain_appends import new_append
from tests.support.transcript.stored_rows import check_chain_of, check_totals, stored_rows
from tests.support.transcript.tables import Superuser


async def test_each_call_of_a_transaction_has_its_own_entry_or_none(
    session: Session, database: Database, superuser: Superuser
) -> None:
    sessions = [session, *(session.sibling() for _ in range(3))]
    for one in sessions[1:]:
        await one.create()
    claims = [await one.acquire(1) for one in sessions]
    appends = [new_append(one, claim) for one, claim in zip(sessions, claims, strict=True)]
    appends[1] = replace(appends[1], writer=Writer(claim=WriterClaim(claims[0].run_id, 1)))
    outcomes = await append_batch(database, session.tenant_id, appends)
    assert [outcome.outcome for outcome in outcomes] == ["APPENDED", "CLAIM_LOST", "APPENDED", "APPENDED"]
    assert [await check_totals(superuser, one) for one in sessions] == [2, 1, 2, 2]
    for one, append in zip(sessions, appends, strict=True):
        bodies = [entry[16] for entry in (await stored_rows(superuser, one))[0][1:]]
        assert bodies == ([append.entries[0].body] if one is not sessions[1] else [])
    statement = "select count(distinct xmin::text) from entries where tenant_id = %s and seq > 1"
    assert await (await superuser.execute(statement, (session.tenant_id,))).fetchone() == (1,)


async def test_appends_to_one_transcript_share_a_call_and_have_their_own_heads(
    session: Session, database: Database, superuser: Superuser
) -> None:
    claim, other = await session.acquire(1), session.sibling()
    await other.create()
    first, third = new_append(session, claim), new_append(session, claim)
    (entry,) = new_append(session, claim).entries
    second = replace(new_append(session, claim), entries=(entry, replace(entry, body=b"second")))
    elsewhere = new_append(other, await other.acquire(1))
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
    used = new_append(session, claim)
    await append_batch(database, session.tenant_id, [used])
    outcomes = await append_batch(database, session.tenant_id, [new_append(session, claim), used])
    assert [outcome.outcome for outcome in outcomes] == ["BUSY", "BUSY"]
    assert await check_totals(superuser, session) == 2


async def test_one_key_is_not_used_twice_by_one_call(
    session: Session, database: Database, superuser: Superuser
) -> None:
    append = new_append(session, await session.acquire(1))
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
    first = new_append(session, await session.acquire(1), key=paused)
    claim = await other.acquire(1)
    second = new_append(other, claim)
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
            left = [new_append(sessions[n], claims[n]) for n in pair]
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
