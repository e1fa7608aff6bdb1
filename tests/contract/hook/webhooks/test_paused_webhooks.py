"""PauseWebhook and ResumeWebhook: messages of a paused webhook wait, and each is sent once."""

import asyncio
from datetime import timedelta

import psycopg
import pytest
from aiohttp import web
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.store import webhook_deliveries, webhooks
from spawnmesh_hook.store.webhook_deliveries import DELIVER_WEBHOOK
from spawnmesh_postgres.database import open_database
from spawnmesh_postgres.jobs import store as jobs
from spawnmesh_postgres.jobs.worker import JobWorker

from tests.support.hook.fixtures import HookMesh, Tenant, refused
from tests.support.hook.webhook_receiver import (
    DELIVERED,
    GIVEN_UP,
    NO_RECEIVER,
    PENDING,
    Execute,
    Serve,
    WebhookReceiver,
    log_of,
    pause,
    put_webhook,
    resume,
    run_again,
    run_ended,
    webhook_of,
)
from tests.support.waiting import eventually

GONE = "it answered that it is gone (HTTP status 410)"
FAILS = "it has received nothing for five days"


async def test_PauseWebhook__its_messages_wait_until_it_is_resumed(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver, other = WebhookReceiver(), WebhookReceiver()
    await put_webhook(tenant, await serve(receiver))
    await put_webhook(tenant, await serve(other), name="other")
    await tenant.publish(run_ended(1))
    paused = await pause(tenant)
    assert (paused.paused, paused.pause_reason) == (True, "")
    await worker.run_due()
    assert await tenant.publish(run_ended(2)) == 2
    await worker.run_due()
    assert (receiver.bodies, len(other.bodies)) == ([], 2)
    held = await execute("select due_time = 'infinity', claim_id is null, attempt_count, key from jobs")
    assert [row[:3] for row in held] == [(True, True, 0)] * 2
    assert [(one.state, one.attempt_count) for one in await log_of(tenant)] == [(PENDING, 0)] * 2
    resumed = await resume(tenant)
    assert not resumed.paused
    assert resumed.etag not in (paused.etag, "")
    await worker.run_due()
    assert len(receiver.ids) == len(set(receiver.ids)) == 2
    assert await execute("select 1 from jobs") == []
    assert [(one.state, one.attempt_count) for one in await log_of(tenant)] == [(DELIVERED, 1)] * 2


async def test_PauseWebhook__a_repeat_changes_nothing(tenant: Tenant) -> None:
    await put_webhook(tenant, NO_RECEIVER)
    first = await pause(tenant)
    assert await pause(tenant) == first
    with refused(Reason.NOT_FOUND):
        await pause(tenant, "another")


async def test_PauseWebhook__a_request_in_progress_is_finished(
    tenant: Tenant, worker: JobWorker, serve: Serve
) -> None:
    receiver, called, answer = WebhookReceiver(), asyncio.Event(), asyncio.Event()

    async def respond(_request: web.Request) -> web.StreamResponse:
        called.set()
        await answer.wait()
        return web.Response()

    receiver.respond = respond
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    working = asyncio.create_task(worker.run_due())
    async with asyncio.timeout(60):
        await called.wait()
    await pause(tenant)
    answer.set()
    await working
    assert [(one.state, one.attempt_count) for one in await log_of(tenant)] == [(DELIVERED, 1)]
    assert (await webhook_of(tenant)).paused


async def test_PauseWebhook__a_message_that_waits_for_its_next_attempt_is_held(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver([500])
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    await worker.run_due()
    await pause(tenant)
    await run_again(worker, execute)
    assert await execute("select due_time = 'infinity' from jobs") == [(True,)]
    assert len(receiver.bodies) == 1
    await resume(tenant)
    await worker.run_due()
    assert receiver.ids == receiver.ids[:1] * 2
    assert [(one.state, one.attempt_count) for one in await log_of(tenant)] == [(DELIVERED, 2)]


async def test_ResumeWebhook__it_counts_as_not_failing(
    tenant: Tenant, worker: JobWorker, serve: Serve
) -> None:
    await put_webhook(tenant, await serve(WebhookReceiver([500])))
    await tenant.publish(run_ended())
    await worker.run_due()
    failing = await webhook_of(tenant)
    assert failing.HasField("failing_since_time")
    resumed = await resume(tenant)
    assert not resumed.HasField("failing_since_time")
    assert resumed.etag != failing.etag
    assert await resume(tenant) == resumed
    with refused(Reason.NOT_FOUND):
        await resume(tenant, "another")


async def test_ResumeWebhook__messages_of_other_webhooks_stay_held(
    tenant: Tenant, worker: JobWorker, serve: Serve
) -> None:
    receivers = {name: WebhookReceiver() for name in ("a", "b")}
    for name, receiver in receivers.items():
        await put_webhook(tenant, await serve(receiver), name=name)
        await pause(tenant, name)
    await tenant.publish(run_ended())
    await worker.run_due()
    await resume(tenant, "a")
    await worker.run_due()
    assert {name: len(one.bodies) for name, one in receivers.items()} == {"a": 1, "b": 0}


async def test_ResumeWebhook__wakes_a_running_worker(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver()
    await put_webhook(tenant, await serve(receiver))
    await pause(tenant)
    running = asyncio.create_task(worker.run_jobs_forever())
    await tenant.publish(*map(run_ended, range(5)))
    held = "select 1 from jobs where due_time = 'infinity' having count(*) = 5"
    await eventually(lambda: execute(held))
    await resume(tenant)
    await eventually(lambda: len(receiver.bodies) == 5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(set(receiver.ids)) == 5


@pytest.mark.parametrize("is_held_first", [False, True])
async def test_ResumeWebhook__a_message_that_is_being_held_is_due(
    tenant: Tenant,
    worker: JobWorker,
    serve: Serve,
    execute: Execute,
    databases: dict[str, ServiceDsn],
    is_held_first: bool,
) -> None:
    """The worker saw that the webhook was paused, and holds the message before or after the resume."""
    receiver = WebhookReceiver()
    await put_webhook(tenant, await serve(receiver))
    await pause(tenant)
    await tenant.publish(run_ended())
    claim = jobs.claim_statement(DELIVER_WEBHOOK, jobs.ClaimQuota(50, 50, {}), timedelta(seconds=600))
    async with open_database(databases["hook"].app, name="holding", max_connections=3) as database:
        [job] = await jobs.claim(database, claim)
        if is_held_first:
            async with database.transaction(tenant.tenant_id) as connection:
                await webhook_deliveries.hold_message(connection, job)
                resuming = asyncio.create_task(resume(tenant))
                await eventually(lambda: _is_waiting(databases["hook"]))
            await resuming
        else:
            async with database.transaction(tenant.tenant_id) as connection:
                resumed = await webhooks.resume_webhook(connection, tenant.tenant_id, "w")
                await webhook_deliveries.release_held_messages(
                    connection, tenant.tenant_id, job.arguments["webhook_id"]
                )
                assert not resumed.paused

                async def hold() -> None:
                    async with database.transaction(tenant.tenant_id) as other:
                        await webhook_deliveries.hold_message(other, job)

                holding = asyncio.create_task(hold())
                await eventually(lambda: _is_waiting(databases["hook"]))
            await holding
        assert await execute("select 1 from jobs where due_time = 'infinity'") == []
        await execute("update jobs set due_time = now()")
    await worker.run_due()
    assert len(receiver.bodies) == 1


async def test_a_worker_that_has_lost_its_claim_holds_nothing(
    tenant: Tenant, execute: Execute, databases: dict[str, ServiceDsn]
) -> None:
    await put_webhook(tenant, NO_RECEIVER)
    await pause(tenant)
    await tenant.publish(run_ended())
    claim = jobs.claim_statement(DELIVER_WEBHOOK, jobs.ClaimQuota(50, 50, {}), timedelta(seconds=600))
    async with open_database(databases["hook"].app, name="holding", max_connections=1) as database:
        [job] = await jobs.claim(database, claim)
        await execute("update jobs set claim_id = gen_random_uuid()")
        async with database.transaction(tenant.tenant_id) as connection:
            await webhook_deliveries.hold_message(connection, job)
    assert await execute("select due_time = 'infinity', attempt_count from jobs") == [(False, 1)]


async def _is_waiting(database: ServiceDsn) -> bool:
    """Return whether a transaction waits for another one."""
    query = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and usename = current_user"
    async with await psycopg.AsyncConnection.connect(database.app) as connection:
        return await (await connection.execute(query)).fetchone() is not None


async def test_a_webhook_that_is_gone_is_paused_and_the_message_given_up(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver([410])
    before = (await put_webhook(tenant, await serve(receiver))).webhook
    await tenant.publish(run_ended(1))
    await worker.run_due()
    webhook = await webhook_of(tenant)
    assert (webhook.paused, webhook.pause_reason) == (True, GONE)
    assert webhook.etag != before.etag
    assert [(one.state, one.attempt_count) for one in await log_of(tenant)] == [(GIVEN_UP, 1)]
    assert await execute("select 1 from jobs") == []
    await tenant.publish(run_ended(2))
    await worker.run_due()
    assert len(receiver.bodies) == 1
    by_person = await pause(tenant)
    assert (by_person.paused, by_person.pause_reason) == (True, "")
    await resume(tenant)
    await worker.run_due()
    assert [one.state for one in await log_of(tenant)] == [DELIVERED, GIVEN_UP]


@pytest.mark.parametrize(("age", "is_paused"), [("5 days", True), ("4 days 23 hours", False)])
async def test_a_webhook_that_fails_for_five_days_is_paused(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute, age: str, is_paused: bool
) -> None:
    receiver = WebhookReceiver([500, 500])
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    await worker.run_due()
    since = (await webhook_of(tenant)).failing_since_time
    await execute(f"update webhooks set failing_since = now() - interval '{age}'")
    await run_again(worker, execute)
    webhook = await webhook_of(tenant)
    assert (webhook.paused, webhook.pause_reason) == (is_paused, FAILS if is_paused else "")
    assert webhook.failing_since_time.ToNanoseconds() < since.ToNanoseconds()
    assert [(one.state, one.attempt_count) for one in await log_of(tenant)] == [(PENDING, 2)]
    await run_again(worker, execute)
    assert len(receiver.bodies) == (2 if is_paused else 3)
    await resume(tenant)
    await worker.run_due()
    assert [(one.state, one.attempt_count) for one in await log_of(tenant)] == [(DELIVERED, 3)]
    assert not (await webhook_of(tenant)).HasField("failing_since_time")


async def test_a_message_that_is_received_ends_the_failure_of_its_webhook(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    await put_webhook(tenant, await serve(WebhookReceiver([500])))
    await tenant.publish(run_ended())
    await worker.run_due()
    before = await webhook_of(tenant)
    await execute("update webhooks set failing_since = now() - interval '6 days'")
    await run_again(worker, execute)
    webhook = await webhook_of(tenant)
    assert (webhook.paused, webhook.HasField("failing_since_time")) == (False, False)
    assert webhook.etag == before.etag


@pytest.mark.parametrize("status", [410, 500])
async def test_a_webhook_that_was_resumed_meanwhile_is_not_paused(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute, status: int
) -> None:
    """The request began before the resume, so it says nothing about the webhook as it is now."""
    receiver, called, answer = WebhookReceiver(), asyncio.Event(), asyncio.Event()

    async def respond(_request: web.Request) -> web.StreamResponse:
        called.set()
        await answer.wait()
        return web.Response(status=status)

    receiver.respond = respond
    await put_webhook(tenant, await serve(receiver))
    await execute("update webhooks set failing_since = now() - interval '6 days'")
    await tenant.publish(run_ended())
    working = asyncio.create_task(worker.run_due())
    async with asyncio.timeout(60):
        await called.wait()
    await resume(tenant)
    answer.set()
    await working
    webhook = await webhook_of(tenant)
    assert (webhook.paused, webhook.HasField("failing_since_time")) == (False, False)


async def test_another_replica_reads_a_pause_at_once(mesh: HookMesh, tenant: Tenant) -> None:
    await put_webhook(tenant, NO_RECEIVER)
    elsewhere = tenant.on(await mesh.replica())
    assert await pause(elsewhere) == await webhook_of(tenant)
