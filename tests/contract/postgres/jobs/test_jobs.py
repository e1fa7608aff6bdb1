"""Background jobs: enqueued with a transaction, claimed, retried, and dead."""

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import timedelta

import psycopg
import pytest
from spawnmesh_core.errors import unavailable
from spawnmesh_postgres.database import ALL_TENANTS, Database
from spawnmesh_postgres.jobs import store
from spawnmesh_postgres.jobs.job import Again, BackoffPolicy, ClaimedJob, JobKind, NewJob
from spawnmesh_postgres.jobs.store import CHANNEL, StoredJob
from spawnmesh_postgres.listener import Listener

from tests.support.postgres.jobs import KIND, NOW, Log, enqueue, kind_of, worker_of
from tests.support.waiting import eventually


async def stored(database: Database, scope: str = ALL_TENANTS) -> list[StoredJob]:
    return await store.list_jobs(database, scope, limit=2_000)


async def claim(
    database: Database, *, limit: int, share: int, busy: dict[str, int] | None = None
) -> list[ClaimedJob]:
    quota = store.ClaimQuota(limit, share, busy or {})
    return await store.claim(database, store.claim_statement(KIND, quota, timedelta(minutes=1)))


async def end_claims(database: Database) -> None:
    """Let the time of every claim and of every pause be over."""
    async with database.transaction(ALL_TENANTS) as connection:
        await connection.execute("update job_queue set due_time = now() - interval '1 ms'")


async def test_job_is_there_if_its_transaction_is(database: Database, listener: Listener) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        await enqueue_and_fail(database)
    assert await stored(database) == []
    await enqueue(database, "t-one", "a")
    log = Log()
    assert await worker_of(database, listener, [kind_of(log)]).run_due() == 1
    [job] = log.jobs
    assert (job.tenant_id, job.kind, job.key, job.arguments, job.attempt) == (
        "t-one", KIND, "a", {"id": "a"}, 1
    )  # fmt: skip
    assert await stored(database) == []


async def enqueue_and_fail(database: Database) -> None:
    async with database.pipelined("t-one") as connection:
        await store.enqueue(connection, "t-one", NewJob(KIND, "a"))
        await connection.execute("select 1 / 0")


async def test_key_names_one_job_of_a_tenant(database: Database) -> None:
    await enqueue(database, "t-one", "a")
    [first] = await stored(database)
    await enqueue(database, "t-one", "a", "b")
    await enqueue(database, "t-two", "a")
    found = await stored(database)
    assert [(job.tenant_id, job.key) for job in found] == [("t-one", "a"), ("t-one", "b"), ("t-two", "a")]
    assert found[0] == first


async def test_two_workers_claim_no_job_twice(database: Database) -> None:
    await enqueue(database, "t-one", *(f"{number:03}" for number in range(40)))
    claims = await asyncio.gather(*(claim(database, limit=10, share=10) for _ in range(4)))
    keys = [job.key for jobs in claims for job in jobs]
    assert len(keys) == len(set(keys))
    assert await claim(database, limit=100, share=100) != [] or len(keys) == 40


async def test_job_of_a_worker_that_died_is_claimed_again_when_its_claim_ends(database: Database) -> None:
    await enqueue(database, "t-one", "a")
    [lost] = await claim(database, limit=1, share=1)
    assert await claim(database, limit=1, share=1) == []
    await end_claims(database)
    [again] = await claim(database, limit=1, share=1)
    assert (again.key, again.attempt) == ("a", 2)
    await store.complete(database, lost)
    assert not await store.retry(database, lost, store.AttemptFailure("x", NOW, True, None))
    await store.run_again(database, lost, Again())
    await store.return_claimed(database, lost)
    for claim_id in (lost.claim_id, None):
        async with database.transaction("t-one") as connection:
            await store.delay(connection, ("t-one", KIND, "a"), timedelta(hours=1), claim_id=claim_id)
    [job] = await stored(database)
    assert job.due_time is not None
    assert job.due_time - job.create_time < timedelta(minutes=5), "the end of the new claim"
    assert (job.is_working, job.attempt_count, job.last_error) == (True, 2, ""), "the lost claim is fenced"
    await store.complete(database, again)
    assert await stored(database) == []


async def test_delay_extends_the_claim_of_its_worker_and_moves_a_job_that_no_worker_has(
    database: Database,
) -> None:
    await enqueue(database, "t-one", "a", "b", due_in=-timedelta(seconds=1))
    [claimed] = await claim(database, limit=1, share=1)
    for key in ("a", "b"):
        claim_id = claimed.claim_id if key == claimed.key else None
        async with database.transaction("t-one") as connection:
            await store.delay(connection, ("t-one", KIND, key), timedelta(hours=1), claim_id=claim_id)
    jobs = await stored(database)
    assert {job.key: job.is_working for job in jobs} == {key: key == claimed.key for key in ("a", "b")}
    assert all(job.due_time and job.due_time - job.create_time > timedelta(minutes=59) for job in jobs)
    assert await claim(database, limit=2, share=2) == []


async def test_tenant_with_a_thousand_jobs_delays_no_other(database: Database) -> None:
    await enqueue(database, "t-many", *(f"{number:04}" for number in range(1_000)))
    await enqueue(database, "t-two", "a", "b")
    taken = Counter(job.tenant_id for job in await claim(database, limit=8, share=4))
    assert taken == {"t-many": 4, "t-two": 2}
    busy = {"t-many": 4, "t-two": 2}
    await enqueue(database, "t-two", "c")
    assert Counter(job.tenant_id for job in await claim(database, limit=8, share=4, busy=busy)) == {
        "t-two": 1
    }


async def test_failed_attempt_is_repeated_after_a_pause(database: Database, listener: Listener) -> None:
    await enqueue(database, "t-one", "a")
    log = Log(unavailable("hook"), unavailable("hook"))
    policy = BackoffPolicy(first_pause=timedelta(hours=1), longest_pause=timedelta(hours=8))
    worker = worker_of(database, listener, [kind_of(log, retry=policy)])
    for attempt in (1, 2):
        assert await worker.run_due() == 1
        [job] = await stored(database)
        assert (job.attempt_count, job.dead_time, job.is_working) == (attempt, None, False)
        assert job.last_error == "DEPENDENCY_UNAVAILABLE (hook)"
        assert await worker.run_due() == 0, "it is in its pause"
        assert job.due_time is not None
        assert (job.due_time - job.create_time) > timedelta(minutes=44) * attempt
        await end_claims(database)
    assert await worker.run_due() == 1
    assert await stored(database) == []


def test_pauses_double_with_jitter_up_to_the_longest() -> None:
    policy = BackoffPolicy(first_pause=timedelta(seconds=2), longest_pause=timedelta(seconds=20))
    pauses = [policy.pause_after(attempt, 0.0).total_seconds() for attempt in (1, 2, 3, 4, 5, 10_000)]
    assert pauses == [2, 4, 8, 16, 20, 20]
    assert policy.pause_after(4, 0.99).total_seconds() == pytest.approx(16 * 0.7525)


@pytest.mark.parametrize(
    "policy", [BackoffPolicy(max_attempts=1), BackoffPolicy(kept_for=timedelta(0))], ids=["attempts", "age"]
)
async def test_job_that_fails_for_good_stays_with_its_error_until_it_is_retried_or_discarded(
    database: Database, listener: Listener, policy: BackoffPolicy
) -> None:
    await enqueue(database, "t-one", "a", "b")
    log = Log(ValueError("secret"), ValueError("secret"))
    worker = worker_of(database, listener, [kind_of(log, retry=policy)])
    assert await worker.run_due() == 2
    await end_claims(database)
    assert await worker.run_due() == 0
    dead = await store.list_jobs(database, "t-one", dead=True, limit=10)
    assert [(job.key, job.last_error, job.dead_time is not None) for job in dead] == [
        ("a", "ValueError", True),
        ("b", "ValueError", True),
    ]
    counts = (await store.count_jobs(database))[KIND]
    assert (counts.dead, counts.waiting, counts.working) == (2, 0, 0)
    async with database.transaction("t-one") as connection:
        assert await store.retry_now(connection, ("t-one", KIND, "a"))
        assert await store.discard(connection, ("t-one", KIND, "b"))
        assert not await store.discard(connection, ("t-one", KIND, "a")), "it is not dead any more"
    assert await worker.run_due() == 1
    assert log.jobs[-1].attempt == 1
    assert await stored(database) == []


async def test_job_whose_workers_die_becomes_dead(database: Database, listener: Listener) -> None:
    await enqueue(database, "t-one", "a")
    for _ in range(2):
        assert len(await claim(database, limit=1, share=1)) == 1
        await end_claims(database)
    log = Log()
    assert (
        await worker_of(database, listener, [kind_of(log, retry=BackoffPolicy(max_attempts=2))]).run_due()
        == 1
    )
    [job] = await stored(database)
    assert (log.jobs, job.dead_time is not None, job.last_error) == (
        [], True, "every worker that had it was lost"
    )  # fmt: skip


async def test_handler_may_run_its_job_again_with_other_arguments(
    database: Database, listener: Listener
) -> None:
    await enqueue(database, "t-one", "a")
    log = Log(Again(timedelta(hours=1), {"step": 2}, "it waits"))
    worker = worker_of(database, listener, [kind_of(log)])
    assert await worker.run_due() == 1
    [job] = await stored(database)
    assert (job.attempt_count, job.arguments, job.last_error) == (0, {"step": 2}, "it waits")
    await end_claims(database)
    assert await worker.run_due() == 1
    assert await stored(database) == []


async def test_job_that_is_made_due_anew_during_an_attempt_runs_again(
    database: Database, listener: Listener
) -> None:
    async def make_due_anew(job: ClaimedJob) -> None:
        seen.append(job)
        if len(seen) == 1:
            async with database.transaction(job.tenant_id) as connection:
                await store.reschedule(connection, job.tenant_id, NewJob(KIND, job.key))

    seen: list[ClaimedJob] = []
    await enqueue(database, "t-one", "a")
    assert await worker_of(database, listener, [kind_of(make_due_anew)]).run_due() == 2
    assert await stored(database) == []


async def test_job_that_is_rescheduled_wakes_a_worker(database: Database, listener: Listener) -> None:
    with listener.subscription(CHANNEL) as notified:
        await notified.wait(60)  # Of the listener, when it is connected.
        async with database.transaction("t-one") as connection:
            await store.reschedule(connection, "t-one", NewJob(KIND, "a"))
        assert await notified.wait(60)


async def test_attempt_that_takes_too_long_has_failed(database: Database, listener: Listener) -> None:
    async def hang(_job: ClaimedJob) -> None:
        await asyncio.Event().wait()

    await enqueue(database, "t-one", "a")
    slow = JobKind(KIND, hang, 1, timeout=timedelta(milliseconds=20))
    assert await worker_of(database, listener, [slow]).run_due() == 1
    [job] = await stored(database)
    assert (job.is_working, job.last_error) == (False, "TimeoutError")


async def test_notification_wakes_a_worker_and_a_stopped_one_returns_its_jobs(
    database: Database, listener: Listener
) -> None:
    begun = asyncio.Event()

    async def hang(_job: ClaimedJob) -> None:
        begun.set()
        await asyncio.Event().wait()

    working = asyncio.create_task(worker_of(database, listener, [kind_of(hang)]).run_jobs_forever())
    with listener.subscription(CHANNEL) as notified:
        await notified.wait(60)  # Of the listener, when it is connected.
        await enqueue(database, "t-one", "later", due_in=timedelta(hours=1))
        await enqueue(database, "t-one", "a")
        assert await notified.wait(60)
    async with asyncio.timeout(60):
        await begun.wait()
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
    job = next(job for job in await stored(database) if job.key == "a")
    assert (job.is_working, job.attempt_count) == (False, 0)

    async def is_claimed_again() -> bool:
        """A claim of the stopped worker may hold the row until the server has rolled it back."""
        return [job.key for job in await claim(database, limit=4, share=4)] == ["a"]

    await eventually(is_claimed_again)


async def test_running_worker_keeps_its_limits_and_takes_what_is_left_as_places_are_free(
    database: Database, listener: Listener
) -> None:
    may_end = asyncio.Event()
    now, most, done = Counter[str](), Counter[str](), []

    async def wait(job: ClaimedJob) -> None:
        now[job.tenant_id] += 1
        most[job.tenant_id] = max(most[job.tenant_id], now[job.tenant_id])
        await may_end.wait()
        now[job.tenant_id] -= 1
        done.append(job.key)

    await enqueue(database, "t-many", *(f"{number:02}" for number in range(12)))
    await enqueue(database, "t-two", "a")
    working = asyncio.create_task(worker_of(database, listener, [kind_of(wait)]).run_jobs_forever())
    try:
        await eventually(lambda: now == {"t-many": 2, "t-two": 1})
        may_end.set()
        await eventually(lambda: len(done) == 13)
        assert most == {"t-many": 2, "t-two": 1}
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def test_tenant_sees_its_own_jobs_alone(database: Database) -> None:
    await enqueue(database, "t-one", "a")
    await enqueue(database, "t-two", "a")
    assert [job.tenant_id for job in await stored(database, "t-two")] == ["t-two"]
    async with database.transaction("t-two") as connection:
        await store.delete(connection, "t-one", KIND, "a")
        assert not await store.retry_now(connection, ("t-one", KIND, "a"))
    assert len(await stored(database)) == 2


async def test_pages_of_jobs_follow_each_other(database: Database) -> None:
    await enqueue(database, "t-one", "a", "b", "c")
    first = await store.list_jobs(database, ALL_TENANTS, limit=2)
    last = first[-1]
    rest = await store.list_jobs(database, ALL_TENANTS, after=(last.tenant_id, last.kind, last.key), limit=2)
    assert [job.key for job in (*first, *rest)] == ["a", "b", "c"]
    assert await store.list_jobs(database, ALL_TENANTS, kind="other", limit=2) == []


async def test_jobs_of_kinds_are_deleted_and_those_at_work_counted(database: Database) -> None:
    await enqueue(database, "t-one", "a", "b")
    await claim(database, limit=1, share=1)
    async with database.transaction("t-one") as connection:
        assert await store.delete_kinds(connection, "t-one", ["other"]) == 0
        assert await store.delete_kinds(connection, "t-one", [KIND, "other"]) == 1
    assert await stored(database) == []
