"""Appends of several calls share one transaction, and no call decides the outcome of another."""

import asyncio
import secrets
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg_pool import PoolTimeout
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_transcript.domain.appends import Append, AppendResult
from spawnmesh_transcript.domain.entries import EntryKind, Label, NewEntry, WriterClaim
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.writers import Writer
from spawnmesh_transcript.operations import append_queue
from spawnmesh_transcript.operations.append_queue import open_append_queue

from tests.support.transcript.fixtures import Service, Session


def _append(
    session: Session, epoch: int, run_id: str, *, key: str = "", target: str = "", entry_id: str = ""
) -> Append:
    body = secrets.token_bytes(16)
    entry = NewEntry(
        kind=EntryKind.LABEL, body=body, label=Label.FINAL, target_entry_id=target, entry_id=entry_id
    )
    if not target:
        entry = NewEntry(kind=EntryKind.CUSTOM, body=body, entry_id=entry_id)
    return Append(
        Key(session.tenant_id, session.session_id),
        (entry,),
        key or secrets.token_hex(8),
        body,
        Writer(claim=WriterClaim(run_id, epoch)),
        0,
    )


async def _hold(superuser: AsyncConnection[Any], session: Session) -> None:
    await superuser.execute("begin")
    await superuser.execute(
        "select from transcript.transcripts where tenant_id = %s and session_id = %s for update",
        (session.tenant_id, session.session_id),
    )


async def _commits(superuser: AsyncConnection[Any], session: Session) -> int:
    """Return the number of transactions that wrote the entries behind the headers."""
    counting = "select count(distinct xmin::text) from transcript.entries where tenant_id = %s and seq > 1"
    row = await (await superuser.execute(counting, (session.tenant_id,))).fetchone()
    return int(row[0]) if row else 0


async def test_concurrent_appends_share_a_commit_and_have_their_own_answers(
    session: Session, database: Database, superuser: AsyncConnection[Any]
) -> None:
    claim, other = await session.acquire(2), session.sibling()
    await other.create()
    elsewhere = await other.acquire(1)
    good = [_append(session, 2, claim.run_id) for _ in range(5)] + [
        _append(other, 1, elsewhere.run_id) for _ in range(3)
    ]
    stale = _append(session, 1, new_id(IdKind.RUN))
    aimless = _append(session, 2, claim.run_id, target="ent_nobody")
    reused = _append(session, 2, claim.run_id, key=good[1].request_id)
    async with open_append_queue(database, slots=1) as queue:
        appends = [*good, stale, aimless, reused, good[2]]
        outcomes = await asyncio.gather(*map(queue.append, appends))
    states = [outcome.outcome for outcome in outcomes]
    assert states == ["APPENDED"] * 8 + ["CLAIM_LOST", "TARGET_NOT_FOUND", "KEY_REUSED", "REPLAYED"]
    assert sorted(outcome.first_seq for outcome in outcomes[:5]) == [2, 3, 4, 5, 6]
    assert sorted(outcome.first_seq for outcome in outcomes[5:8]) == [2, 3, 4]
    assert (outcomes[11].entry_ids, outcomes[11].first_seq) == (outcomes[2].entry_ids, outcomes[2].first_seq)
    assert await _commits(superuser, session) == 2, "the first one by itself, the others together"


class _Held:
    """A database whose first statements wait until they are released."""

    def __init__(self, database: Database, count: int = 1) -> None:
        self._database = database
        self._left = count
        self.call_count = 0
        self._go = asyncio.Event()

    async def call(self, *statement: Any) -> Any:
        self._left -= 1
        self.call_count += 1
        if self._left >= 0:
            await self._go.wait()
        return await self._database.call(*statement)

    def let_go(self) -> None:
        self._go.set()


async def _run_ready_tasks() -> None:
    """Let every task run until it waits for the database or for another task."""
    for _ in range(10):
        await asyncio.sleep(0)


async def _siblings(session: Session, count: int) -> list[Append]:
    """Return one append for each of this number of transcripts of the tenant."""
    appends = []
    for number in range(count):
        one = session.sibling() if number else session
        if number:
            await one.create()
        appends.append(_append(one, 1, (await one.acquire(1)).run_id))
    return appends


async def test_a_full_batch_starts_beside_a_running_one_and_a_smaller_one_waits_for_its_end(
    session: Session, database: Database
) -> None:
    first, *few, enough, last = await _siblings(session, 6)
    held: Any = _Held(database)
    async with open_append_queue(held, slots=2) as queue:
        alone = asyncio.create_task(queue.append(first))
        waiting = [asyncio.create_task(queue.append(one)) for one in few]
        await _run_ready_tasks()
        assert held.call_count == 1, "three appends wait"
        outcomes = await asyncio.gather(queue.append(enough), *waiting)
        behind = asyncio.create_task(queue.append(last))
        await _run_ready_tasks()
        assert held.call_count == 2, "the next append waits again"
        assert [alone.done(), behind.done()] == [False, False]
        held.let_go()
        outcomes += [await alone, await behind]
    assert {outcome.outcome for outcome in outcomes} == {"APPENDED"}


async def test_a_tenant_does_not_wait_for_others_while_connections_are_free(
    session: Session, database: Database
) -> None:
    stranger = session.service.session()
    await stranger.create()
    [append, *more], [foreign, foreign_too] = await _siblings(session, 5), await _siblings(stranger, 2)
    held: Any = _Held(database)
    async with open_append_queue(held, slots=2) as queue:
        alone = asyncio.create_task(queue.append(append))
        await asyncio.sleep(0)
        assert (await queue.append(foreign)).outcome == "APPENDED"
        waiting = [asyncio.create_task(queue.append(one)) for one in [*more, foreign_too]]
        outcomes = await asyncio.gather(*waiting)
        assert not alone.done()
        held.let_go()
        outcomes.append(await alone)
    assert [outcome.outcome for outcome in outcomes] == ["APPENDED"] * 6


async def test_a_started_append_is_not_cancelled(
    session: Session, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_queue, "WAIT_SECONDS", 0.0)
    first, *others = await _siblings(session, 5)
    held: Any = _Held(database, count=2)
    async with open_append_queue(held, slots=2) as queue:
        tasks = [asyncio.create_task(queue.append(one)) for one in [first, *others]]
        await _run_ready_tasks()
        assert not any(task.done() for task in tasks)
        held.let_go()
        assert [outcome.outcome for outcome in await asyncio.gather(*tasks)] == ["APPENDED"] * 5


async def test_a_locked_transcript_does_not_delay_others(
    session: Session, database: Database, superuser: AsyncConnection[Any]
) -> None:
    claim, other = await session.acquire(1), session.sibling()
    await other.create()
    elsewhere = await other.acquire(1)
    await _hold(superuser, session)
    async with open_append_queue(database, slots=1) as queue:
        held = [asyncio.create_task(queue.append(_append(session, 1, claim.run_id))) for _ in range(2)]
        free = await asyncio.gather(*(queue.append(_append(other, 1, elsewhere.run_id)) for _ in range(4)))
        assert [outcome.outcome for outcome in free] == ["APPENDED"] * 4
        assert not any(task.done() for task in held)
        await superuser.execute("commit")
        assert [outcome.outcome for outcome in await asyncio.gather(*held)] == ["APPENDED"] * 2


async def test_an_append_that_the_database_refuses_does_not_harm_others(
    session: Session, database: Database
) -> None:
    claim = await session.acquire(1)
    taken = new_id(IdKind.ENTRY)
    appends = [_append(session, 1, claim.run_id, entry_id=taken) for _ in range(2)]
    appends += [_append(session, 1, claim.run_id) for _ in range(3)]
    async with open_append_queue(database, slots=1) as queue:
        outcomes = await asyncio.gather(*map(queue.append, appends), return_exceptions=True)
    assert isinstance(outcomes[1], psycopg.errors.UniqueViolation)
    made = [outcome for outcome in outcomes if isinstance(outcome, AppendResult)]
    assert sorted(outcome.first_seq for outcome in made) == [2, 3, 4, 5]


async def test_an_append_cancelled_before_its_turn_is_not_made(session: Session, database: Database) -> None:
    claim = await session.acquire(1)
    async with open_append_queue(database, slots=1) as queue:
        first = asyncio.create_task(queue.append(_append(session, 1, claim.run_id)))
        gone, kept = (asyncio.create_task(queue.append(_append(session, 1, claim.run_id))) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        assert [(await task).first_seq for task in (first, kept)] == [2, 3]
        assert (await queue.append(_append(session, 1, claim.run_id))).first_seq == 4


async def test_an_append_that_does_not_start_in_time_is_refused(
    session: Session, service: Service, monkeypatch: pytest.MonkeyPatch, superuser: AsyncConnection[Any]
) -> None:
    monkeypatch.setattr(append_queue, "WAIT_SECONDS", 0.05)
    claim = await session.acquire(1)
    await superuser.execute("begin")
    await superuser.execute("lock table transcript.appends in access exclusive mode")
    async with (
        open_database(service.dsn.app, name="together", max_connections=4) as database,
        open_append_queue(database, slots=1) as queue,
    ):
        begun = asyncio.create_task(queue.append(_append(session, 1, claim.run_id)))
        with pytest.raises(PoolTimeout):
            await asyncio.gather(queue.append(_append(session, 1, claim.run_id)))
        await superuser.execute("commit")
        assert (await begun).first_seq == 2
        assert (await queue.append(_append(session, 1, claim.run_id))).first_seq == 3
