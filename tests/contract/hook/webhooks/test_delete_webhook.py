"""DeleteWebhook: its messages and its job go with it."""

import asyncio

import pytest
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.jobs.worker import JobWorker

from tests.support.hook.fixtures import Tenant, refused
from tests.support.hook.webhook_receiver import (
    NO_RECEIVER,
    PENDING,
    Execute,
    HeldAnswers,
    Serve,
    WebhookReceiver,
    delete,
    log_of,
    names_of,
    pause,
    put_webhook,
    run_ended,
    webhook_of,
)
from tests.support.waiting import eventually


async def test_DeleteWebhook__pending_messages_are_never_sent(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver, other = WebhookReceiver(), WebhookReceiver()
    url = await serve(receiver)
    first = await put_webhook(tenant, url)
    await put_webhook(tenant, await serve(other), name="other")
    assert await tenant.publish(run_ended(1)) == 2
    await delete(tenant)
    await worker.run_due()
    assert (receiver.bodies, len(other.bodies)) == ([], 1)
    assert await execute("select 1 from jobs") == []
    with refused(Reason.NOT_FOUND):
        await log_of(tenant)
    assert await tenant.publish(run_ended(2)) == 1
    again = await put_webhook(tenant, url)
    assert again.secret != first.secret
    assert again.webhook.create_time.ToNanoseconds() > first.webhook.create_time.ToNanoseconds()
    assert await log_of(tenant) == []
    await tenant.publish(run_ended(1))
    await worker.run_due()
    assert len(receiver.bodies) == 1
    assert receiver.is_signed(again.secret)
    assert not receiver.is_signed(first.secret)


@pytest.mark.parametrize("is_paused", [False, True])
async def test_DeleteWebhook__its_job_goes_with_it(
    tenant: Tenant, worker: JobWorker, execute: Execute, is_paused: bool
) -> None:
    await put_webhook(tenant, NO_RECEIVER)
    if is_paused:
        await pause(tenant)
    await tenant.publish(run_ended())
    await worker.run_due()
    assert [one.state for one in await log_of(tenant)] == [PENDING]
    await tenant.publish(run_ended(2))
    assert await execute("select count(*) from jobs") == [(1,)]
    await delete(tenant)
    assert await execute("select 1 from jobs") == []


async def test_DeleteWebhook__a_request_in_progress_leaves_no_job(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver()
    held = HeldAnswers(receiver, 500)
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(*map(run_ended, range(20)))
    working = asyncio.create_task(worker.run_due())
    await eventually(lambda: held.waiting == 4)
    await delete(tenant)
    await put_webhook(tenant, NO_RECEIVER)
    held.release(20)
    await working
    assert len(receiver.bodies) == 4
    assert await execute("select 1 from jobs") == []
    assert await log_of(tenant) == []
    assert not (await webhook_of(tenant)).HasField("failing_since_time")


async def test_DeleteWebhook__the_etag_and_a_repeat(tenant: Tenant) -> None:
    first = (await put_webhook(tenant, NO_RECEIVER)).webhook
    second = await pause(tenant)
    with refused(Reason.ETAG_DIFFERS) as caught:
        await delete(tenant, etag=first.etag)
    assert caught.value.facts["etag"] == second.etag
    assert await webhook_of(tenant) == second
    await delete(tenant, etag=second.etag)
    await delete(tenant, etag=second.etag)
    await delete(tenant)
    assert await names_of(tenant) == []
