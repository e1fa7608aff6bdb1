"""A webhook that answers slowly delays no other one, and is sent a few messages at the same time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh_hook.jobs import webhook_delivery
from spawnmesh_postgres.jobs.worker import JobWorker

from tests.support.hook.fixtures import HookMesh, Tenant
from tests.support.hook.webhook_receiver import (
    DELIVERED,
    Execute,
    HeldAnswers,
    Serve,
    WebhookReceiver,
    log_of,
    put_webhook,
    run_ended,
)
from tests.support.waiting import eventually

MOST = 4
MANY = 24
LONG = Duration(seconds=30)


@asynccontextmanager
async def working_forever(worker: JobWorker) -> AsyncIterator[None]:
    """Run the loop of the worker during the block."""
    running = asyncio.create_task(worker.run_jobs_forever())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("is_of_another_tenant", [False, True])
async def test_a_slow_webhook_delays_no_other_one(
    mesh: HookMesh,
    tenant: Tenant,
    worker: JobWorker,
    serve: Serve,
    is_of_another_tenant: bool,
) -> None:
    slow, quick = WebhookReceiver(), WebhookReceiver()
    held = HeldAnswers(slow)
    other = mesh.tenant(tenant._session) if is_of_another_tenant else tenant
    await put_webhook(tenant, await serve(slow), name="slow", timeout=LONG)
    await tenant.publish(*map(run_ended, range(MANY)))
    async with working_forever(worker):
        await eventually(lambda: held.waiting == MOST)
        await put_webhook(other, await serve(quick), name="quick")
        await other.publish(*map(run_ended, range(100, 100 + MANY)))
        await eventually(lambda: len(set(quick.ids)) == MANY)
        assert (held.waiting, len(slow.bodies)) == (MOST, MOST)
        held.release(MANY + MANY)
        slow.respond = None
        await eventually(lambda: len(set(slow.ids)) >= MANY)


async def test_webhooks_that_are_slow_take_a_part_of_the_places_alone(
    mesh: HookMesh, tenant: Tenant, worker: JobWorker, serve: Serve
) -> None:
    """A tenant whose webhooks are all slow takes its share of the worker, and not that of others."""
    slow, quick = WebhookReceiver(), WebhookReceiver()
    held = HeldAnswers(slow)
    url = await serve(slow)
    other = mesh.tenant(tenant._session)
    for number in range(20):
        await put_webhook(tenant, url, name=f"slow-{number}", timeout=LONG)
    await put_webhook(other, await serve(quick))
    await tenant.publish(*map(run_ended, range(MOST)))
    async with working_forever(worker):
        await eventually(lambda: held.waiting >= 2 * MOST)
        await other.publish(run_ended())
        await eventually(lambda: quick.bodies)


async def test_a_webhook_is_sent_at_most_four_messages_at_the_same_time(
    tenant: Tenant, worker: JobWorker, serve: Serve
) -> None:
    receiver = WebhookReceiver()
    held = HeldAnswers(receiver)
    await put_webhook(tenant, await serve(receiver), timeout=LONG)
    await tenant.publish(*map(run_ended, range(MANY)))
    working = asyncio.create_task(worker.run_due())
    await eventually(lambda: held.waiting >= MOST)
    for number in range(1, 13):
        held.release()
        await eventually(lambda sent=MOST + number: len(receiver.bodies) >= sent)
        assert (len(receiver.bodies), held.most) == (MOST + number, MOST)
    held.release(MANY)
    await working
    assert held.most == MOST
    assert len(receiver.ids) == len(set(receiver.ids)) == MANY
    assert {one.state for one in await log_of(tenant)} == {DELIVERED}


async def test_a_message_that_is_received_beside_one_that_fails_ends_the_failure(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    """One message that the receiver refuses does not hold the others back for long."""
    receiver = WebhookReceiver()
    held = HeldAnswers(receiver, 400)
    await put_webhook(tenant, await serve(receiver), timeout=LONG)
    await tenant.publish(*map(run_ended, range(MANY)))
    working = asyncio.create_task(worker.run_due())
    await eventually(lambda: held.waiting == MOST)
    held.release()
    failure = "select 1 from webhooks where failing_since is not null"
    await eventually(lambda: execute(failure))
    assert len(receiver.bodies) == MOST, "no further message is sent after the first that fails"
    await execute("update webhooks set failing_since = failing_since - interval '1 minute'")
    held.status = 204
    held.release(MANY)
    await working
    assert [one.state for one in await log_of(tenant)].count(DELIVERED) == MANY - 1
    assert await execute(failure) == []


async def test_a_slow_webhook_is_left_for_others_after_a_time(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also within a batch, whose slow requests together would exceed the time-out of the job."""
    monkeypatch.setattr(webhook_delivery, "_BUSY_SECONDS", 0.0)
    receiver = WebhookReceiver()
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(*map(run_ended, range(MANY)))
    turns = await worker.run_due()
    assert turns >= MANY // MOST
    assert len(receiver.ids) == len(set(receiver.ids)) == MANY
    assert await execute("select 1 from jobs") == []
