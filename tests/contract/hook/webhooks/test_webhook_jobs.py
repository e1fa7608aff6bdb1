"""The job of a webhook: a message is sent whenever it is stored, also while the job ends."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.domain.webhooks import WebhookMessage, WebhookType
from spawnmesh_hook.jobs.webhook_delivery import WebhookDeliverer
from spawnmesh_hook.store import webhook_deliveries, webhooks
from spawnmesh_hook.store.webhook_deliveries import DELIVER_WEBHOOK
from spawnmesh_postgres.database import Connection, Database, open_database
from spawnmesh_postgres.jobs import store as jobs
from spawnmesh_postgres.jobs.job import ClaimedJob
from spawnmesh_postgres.jobs.worker import JobWorker

from tests.support.hook.fixtures import Tenant
from tests.support.hook.webhook_receiver import (
    DELIVERED,
    PENDING,
    Execute,
    HeldAnswers,
    Serve,
    WebhookReceiver,
    log_of,
    pause,
    put_webhook,
    resume,
    run_ended,
)
from tests.support.waiting import eventually

CLAIM = jobs.claim_statement(DELIVER_WEBHOOK, jobs.ClaimQuota(50, 50, {}), timedelta(seconds=600))


@pytest.fixture
async def database(databases: dict[str, ServiceDsn]) -> AsyncIterator[Database]:
    async with open_database(databases["hook"].app, name="beside", max_connections=3) as opened:
        yield opened


def deliverer_of(worker: JobWorker) -> WebhookDeliverer:
    deliverer = worker._kinds[DELIVER_WEBHOOK].handler.__self__  # type: ignore[attr-defined]
    assert isinstance(deliverer, WebhookDeliverer)
    return deliverer


async def job_that_has_looked(tenant: Tenant, worker: JobWorker, database: Database) -> ClaimedJob:
    """Send the one message that is pending. Return the job, whose end is not stored yet."""
    [job] = await jobs.claim(database, CLAIM)
    assert job.tenant_id == tenant.tenant_id
    assert await deliverer_of(worker).deliver(job) is None, "it has nothing more to send"
    return job


async def store_message(connection: Connection, tenant: Tenant, job: ClaimedJob) -> None:
    """Store a message with the transaction, as PublishEvents does."""
    row = await (await connection.execute("select now() as time")).fetchone()
    assert row is not None
    message = WebhookMessage("evt_late", WebhookType.RUN_ENDED, "ses_1", "run_2", row["time"], "{}")
    stored = await webhook_deliveries.enqueue_messages(connection, tenant.tenant_id, [(job.key, message)], "")
    assert stored == 1


async def is_waiting(database: ServiceDsn) -> bool:
    """Return whether a transaction waits for another one."""
    query = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and usename = current_user"
    async with await psycopg.AsyncConnection.connect(database.app) as connection:
        return await (await connection.execute(query)).fetchone() is not None


async def test_a_message_that_is_stored_before_the_job_ends_is_seen_by_its_end(
    tenant: Tenant,
    worker: JobWorker,
    serve: Serve,
    database: Database,
    databases: dict[str, ServiceDsn],
    execute: Execute,
) -> None:
    receiver = WebhookReceiver()
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended(1))
    job = await job_that_has_looked(tenant, worker, database)
    async with database.adding(tenant.tenant_id) as connection:
        await store_message(connection, tenant, job)
        ending = asyncio.create_task(jobs.complete(database, job, deliverer_of(worker).at_end))
        await eventually(lambda: is_waiting(databases["hook"]))
    await ending
    assert await execute("select claim_id, due_time <= now() from jobs") == [(None, True)]
    await worker.run_due()
    assert receiver.ids[1:] == ["evt_late"]
    assert await execute("select 1 from jobs") == []


async def test_a_message_that_is_stored_after_the_job_has_ended_has_another_job(
    tenant: Tenant,
    worker: JobWorker,
    serve: Serve,
    database: Database,
    databases: dict[str, ServiceDsn],
) -> None:
    """The end of the job has looked for messages once more, and is not committed yet."""
    receiver = WebhookReceiver()
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended(1))
    job = await job_that_has_looked(tenant, worker, database)
    has_looked, may_commit = asyncio.Event(), asyncio.Event()

    async def at_end(connection: Connection, ended: ClaimedJob, is_dead: bool) -> None:
        await deliverer_of(worker).at_end(connection, ended, is_dead)
        has_looked.set()
        await may_commit.wait()

    async def store() -> None:
        async with database.adding(tenant.tenant_id) as connection:
            await store_message(connection, tenant, job)

    ending = asyncio.create_task(jobs.complete(database, job, at_end))
    async with asyncio.timeout(60):
        await has_looked.wait()
    storing = asyncio.create_task(store())
    await eventually(lambda: is_waiting(databases["hook"]))
    may_commit.set()
    await asyncio.gather(ending, storing)
    await worker.run_due()
    assert receiver.ids[1:] == ["evt_late"]


async def test_a_webhook_that_is_resumed_while_the_job_ends_has_another_job(
    tenant: Tenant,
    worker: JobWorker,
    serve: Serve,
    database: Database,
    databases: dict[str, ServiceDsn],
) -> None:
    """The job has seen that the webhook is paused, and ends while it is resumed."""
    receiver = WebhookReceiver()
    await put_webhook(tenant, await serve(receiver))
    await pause(tenant)
    await tenant.publish(run_ended(1))
    job = await job_that_has_looked(tenant, worker, database)
    async with database.adding(tenant.tenant_id) as connection:
        resumed = await webhooks.resume_webhook(connection, tenant.tenant_id, "w")
        await webhook_deliveries.hasten_messages(connection, tenant.tenant_id, resumed.webhook_id)
        ending = asyncio.create_task(jobs.complete(database, job, deliverer_of(worker).at_end))
        await eventually(lambda: is_waiting(databases["hook"]))
    await ending
    await worker.run_due()
    assert len(receiver.bodies) == 1


async def test_a_webhook_that_is_paused_has_no_job_when_its_job_has_ended(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver()
    held = HeldAnswers(receiver)
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(*map(run_ended, range(20)))
    working = asyncio.create_task(worker.run_due())
    await eventually(lambda: held.waiting)
    await pause(tenant)
    held.release(40)
    await working
    assert await execute("select 1 from jobs") == []
    assert len(await log_of(tenant, state=PENDING)) == 4
    await resume(tenant)
    assert await execute("select count(*) from jobs where due_time <= now()") == [(1,)]


async def test_a_message_that_is_stored_while_the_job_is_claimed_is_sent_by_it(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver()
    held = HeldAnswers(receiver)
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended(1))
    [(created,)] = await execute("select create_time from jobs")
    working = asyncio.create_task(worker.run_due())
    await eventually(lambda: held.waiting)
    [claimed] = await execute("select claim_id, due_time from jobs")
    await tenant.publish(run_ended(2))
    assert await execute("select claim_id, due_time from jobs") == [claimed], "its claim goes on"
    assert await execute("select create_time from jobs") == [(created,)]
    held.release(2)
    assert await working == 1
    assert [one.state for one in await log_of(tenant)] == [DELIVERED] * 2
    assert await execute("select 1 from jobs") == []


async def test_a_message_makes_a_job_due_that_waits_for_another_message(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver([500])
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended(1))
    await worker.run_due()
    await execute("update webhooks set failing_since = null, failure_count = 0, retry_time = null")
    assert await execute("select due_time > now(), claim_id from jobs") == [(True, None)]
    assert await worker.run_due() == 0
    await tenant.publish(run_ended(2))
    await worker.run_due()
    assert [one.state for one in await log_of(tenant)] == [DELIVERED, PENDING]


async def test_a_job_looks_again_within_a_time_also_if_its_messages_are_due_much_later(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    """A message that is stored while the job is claimed may not be seen by it, and does not wake it."""
    await put_webhook(tenant, await serve(WebhookReceiver([500])))
    await tenant.publish(run_ended(1))
    await worker.run_due()
    await execute("update webhooks set retry_time = now() + interval '1 hour'")
    for failing in (True, False):
        await execute("update webhook_deliveries set attempt_time = now() + interval '4 hours'")
        if not failing:
            await execute("update webhooks set retry_time = null")
        await execute("update jobs set due_time = now()")
        assert await worker.run_due() == 1
        [(seconds,)] = await execute("select extract(epoch from due_time - now())::float8 from jobs")
        assert 0 < seconds <= 15


async def test_the_messages_of_many_webhooks_are_stored_with_one_job_each(
    tenant: Tenant, execute: Execute
) -> None:
    for number in range(4):
        await put_webhook(tenant, "https://127.0.0.1:1/", name=f"w{number}")
    assert await tenant.publish(*map(run_ended, range(10))) == 40
    assert await execute("select count(*), count(distinct key) from jobs") == [(4, 4)]


async def test_the_same_events_can_be_published_in_several_orders_at_once(
    tenant: Tenant, execute: Execute
) -> None:
    for number in range(8):
        await put_webhook(tenant, "https://127.0.0.1:1/", name=f"w{number}")
    events = [run_ended(number) for number in range(60)]
    orders = [events, events[::-1], events[30:] + events[:30], events[::2] + events[1::2]]
    for attempt in range(3):
        await execute("delete from webhook_deliveries")
        counts = await asyncio.gather(*(tenant.publish(*order) for order in orders))
        assert sum(counts) == 8 * 60, attempt
