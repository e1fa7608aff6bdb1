"""PauseWebhook and ResumeWebhook: messages of a paused webhook wait, and each is sent once."""

import asyncio

import pytest
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.jobs.worker import JobWorker

from tests.support.hook.fixtures import HookMesh, Tenant, refused
from tests.support.hook.webhook_receiver import (
    DELIVERED,
    GIVEN_UP,
    NO_RECEIVER,
    PENDING,
    Execute,
    HeldAnswers,
    Serve,
    WebhookReceiver,
    end_the_day,
    log_of,
    pause,
    put_webhook,
    rest_of_pause,
    resume,
    run_again,
    run_ended,
    webhook_of,
)
from tests.support.waiting import eventually

GONE = "it answered that it is gone (HTTP status 410)"
FAILS = "it has received nothing for five days"
NO_JOB = "select 1 where not exists (select from jobs)"


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
    assert await execute(NO_JOB), "a paused webhook costs nothing"
    assert [(one.state, one.attempt_count) for one in await log_of(tenant)] == [(PENDING, 0)] * 2
    resumed = await resume(tenant)
    assert not resumed.paused
    assert resumed.etag not in (paused.etag, "")
    await worker.run_due()
    assert len(receiver.ids) == len(set(receiver.ids)) == 2
    assert await execute(NO_JOB)
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
    receiver = WebhookReceiver()
    held = HeldAnswers(receiver)
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(*map(run_ended, range(9)))
    working = asyncio.create_task(worker.run_due())
    await eventually(lambda: held.waiting == 4)
    await pause(tenant)
    held.release(16)
    await working
    states = [one.state for one in await log_of(tenant)]
    # At most one batch, of which the worker has read that the webhook is not paused.
    assert states.count(DELIVERED) == len(receiver.bodies) >= 4
    assert (await webhook_of(tenant)).paused


async def test_PauseWebhook__nothing_is_sent_after_the_batch_in_progress(
    tenant: Tenant, worker: JobWorker, serve: Serve
) -> None:
    receiver = WebhookReceiver()
    held = HeldAnswers(receiver)
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(*map(run_ended, range(40)))
    working = asyncio.create_task(worker.run_due())
    await eventually(lambda: held.waiting == 4)
    await pause(tenant)
    held.release(40)
    await working
    assert len(receiver.bodies) == 16
    assert [one.state for one in await log_of(tenant)].count(PENDING) == 24


async def test_PauseWebhook__a_message_that_waits_for_its_next_attempt_is_not_sent(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver([500])
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    await worker.run_due()
    await pause(tenant)
    await run_again(worker, execute)
    assert await execute(NO_JOB)
    assert len(receiver.bodies) == 1
    await resume(tenant)
    await worker.run_due()
    assert receiver.ids == receiver.ids[:1] * 2
    assert [(one.state, one.attempt_count) for one in await log_of(tenant)] == [(DELIVERED, 2)]


async def test_ResumeWebhook__it_counts_as_not_failing(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    await put_webhook(tenant, await serve(WebhookReceiver([500])))
    await tenant.publish(run_ended())
    await worker.run_due()
    failing = await webhook_of(tenant)
    assert failing.HasField("failing_since_time")
    resumed = await resume(tenant)
    assert not resumed.HasField("failing_since_time")
    assert await execute("select failure_count, retry_time from webhooks") == [(0, None)]
    assert resumed.etag != failing.etag
    assert await resume(tenant) == resumed
    with refused(Reason.NOT_FOUND):
        await resume(tenant, "another")


async def test_ResumeWebhook__a_message_in_a_long_pause_is_due(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver([500] * 7)
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    await worker.run_due()
    for _ in range(6):
        await run_again(worker, execute)
    assert await rest_of_pause(execute) > 7_000
    await execute("update webhooks set retry_time = null")
    assert await worker.run_due() == 0
    await resume(tenant)
    await worker.run_due()
    assert [(one.state, one.attempt_count) for one in await log_of(tenant)] == [(DELIVERED, 8)]


async def test_ResumeWebhook__messages_of_other_webhooks_wait_on(
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
    await eventually(lambda: execute(NO_JOB))
    await resume(tenant)
    await eventually(lambda: len(receiver.bodies) == 5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(set(receiver.ids)) == 5


async def test_ResumeWebhook__nothing_is_added_for_a_tenant_that_is_being_purged(
    tenant: Tenant, execute: Execute
) -> None:
    await put_webhook(tenant, NO_RECEIVER)
    await pause(tenant)
    await execute("insert into purged_tenants select tenant_id, 0 from webhooks")
    with refused(Reason.UNKNOWN_TENANT):
        await resume(tenant)
    assert await execute(NO_JOB)


async def test_a_webhook_that_is_gone_is_paused_and_the_message_waits(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver([410])
    before = (await put_webhook(tenant, await serve(receiver))).webhook
    await tenant.publish(run_ended(1))
    await worker.run_due()
    webhook = await webhook_of(tenant)
    assert (webhook.paused, webhook.pause_reason) == (True, GONE)
    assert webhook.etag != before.etag
    assert [(one.state, one.attempt_count) for one in await log_of(tenant)] == [(PENDING, 1)]
    assert await execute(NO_JOB)
    await tenant.publish(run_ended(2))
    await run_again(worker, execute)
    assert len(receiver.bodies) == 1
    assert await pause(tenant) == webhook, "the reason stays"
    resumed = await resume(tenant)
    assert (resumed.paused, resumed.pause_reason) == (False, "")
    await worker.run_due()
    assert [(one.state, one.attempt_count) for one in await log_of(tenant)] == [
        (DELIVERED, 1),
        (DELIVERED, 2),
    ]
    assert receiver.ids.count(receiver.ids[0]) == 2


@pytest.mark.parametrize(
    ("age", "failures", "is_paused"),
    [("5 days", 100, True), ("5 days", 99, False), ("4 days 23 hours", 1_000, False)],
)
async def test_a_webhook_that_fails_often_for_five_days_is_paused(
    tenant: Tenant,
    worker: JobWorker,
    serve: Serve,
    execute: Execute,
    age: str,
    failures: int,
    is_paused: bool,
) -> None:
    receiver = WebhookReceiver([500, 500])
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    await worker.run_due()
    since = (await webhook_of(tenant)).failing_since_time
    await execute(f"update webhooks set failing_since = now() - interval '{age}', failure_count = {failures}")
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
    await execute("update webhooks set failing_since = now() - interval '6 days', failure_count = 1000")
    await run_again(worker, execute)
    webhook = await webhook_of(tenant)
    assert (webhook.paused, webhook.HasField("failing_since_time")) == (False, False)
    assert await execute("select failure_count, retry_time from webhooks") == [(0, None)]
    assert webhook.etag == before.etag


@pytest.mark.parametrize("status", [410, 500])
async def test_a_webhook_that_was_resumed_meanwhile_is_not_paused(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute, status: int
) -> None:
    """The request began before the resume, so it says nothing about the webhook as it is now."""
    receiver = WebhookReceiver()
    held = HeldAnswers(receiver, status)
    await put_webhook(tenant, await serve(receiver))
    await execute("update webhooks set failing_since = now() - interval '6 days', failure_count = 1000")
    await tenant.publish(run_ended())
    working = asyncio.create_task(worker.run_due())
    await eventually(lambda: held.waiting)
    await resume(tenant)
    held.release()
    await working
    webhook = await webhook_of(tenant)
    assert (webhook.paused, webhook.HasField("failing_since_time")) == (False, False)


async def test_ResumeWebhook__messages_have_another_day_also_during_a_request(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    """The worker has read the webhook before the resume. It must not give up what was resumed."""
    receiver = WebhookReceiver([500])
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended(1))
    await worker.run_due()
    await tenant.publish(run_ended(2), run_ended(3))
    await end_the_day(execute)
    held = HeldAnswers(receiver, 500)
    working = asyncio.create_task(run_again(worker, execute))
    await eventually(lambda: held.waiting)
    await resume(tenant)
    held.release(100)
    await working
    assert [one.state for one in await log_of(tenant)] == [PENDING] * 3
    held.status = 204
    await run_again(worker, execute)
    await run_again(worker, execute)
    assert [one.state for one in await log_of(tenant)] == [DELIVERED] * 3


@pytest.mark.parametrize("is_resumed", [False, True])
async def test_a_day_begins_anew_with_a_resume(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute, is_resumed: bool
) -> None:
    receiver = WebhookReceiver([500] * 2)
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    await pause(tenant)
    await end_the_day(execute)
    await resume(tenant)
    if not is_resumed:
        await execute("update webhooks set resume_time = resume_time - interval '1 day'")
    await worker.run_due()
    assert [one.state for one in await log_of(tenant)] == [PENDING if is_resumed else GIVEN_UP]


async def test_another_replica_reads_a_pause_at_once(mesh: HookMesh, tenant: Tenant) -> None:
    await put_webhook(tenant, NO_RECEIVER)
    elsewhere = tenant.on(await mesh.replica())
    assert await pause(elsewhere) == await webhook_of(tenant)
