"""Messages that are sent again or given up: attempts, circuit breakers, workers and retention."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from google.protobuf.duration_pb2 import Duration
from spawnmesh_hook.domain.webhooks import KEPT_ATTEMPT_COUNT
from spawnmesh_hook.jobs.webhook_delivery import WebhookDeliverer
from spawnmesh_hook.store.webhook_deliveries import DELIVER_WEBHOOK
from spawnmesh_postgres.jobs.worker import JobWorker

from tests.support.hook.fixtures import HookMesh, Tenant
from tests.support.hook.webhook_receiver import (
    DELIVERED,
    GIVEN_UP,
    NO_RECEIVER,
    PENDING,
    Execute,
    Serve,
    WebhookReceiver,
    log_of,
    put_webhook,
    replay,
    resume,
    run_again,
    run_ended,
    webhook_of,
)

ATTEMPTS = 13
DUE_IN = "select extract(epoch from due_time - now())::float8 from jobs"
NO_CONNECTION = "no connection, or it ended before the answer"


class SkippedTime:
    """A clock for circuit breakers that a test sets forward."""

    def __init__(self, worker: JobWorker) -> None:
        self.now = 0.0
        deliverer = worker._kinds[DELIVER_WEBHOOK].handler.__self__  # type: ignore[attr-defined]
        assert isinstance(deliverer, WebhookDeliverer)
        deliverer.breakers._monotonic = lambda: self.now


async def test_a_message_is_given_up_after_the_last_attempt(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    time, receiver = SkippedTime(worker), WebhookReceiver([500] * (ATTEMPTS + 1))
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    pauses = []
    for number in range(1, ATTEMPTS + 1):
        time.now += 1_000
        await run_again(worker, execute)
        pauses += [pause for (pause,) in await execute(DUE_IN)]
        [delivery] = await log_of(tenant)
        assert delivery.attempt_count == len(receiver.bodies) == number
        assert delivery.state == (GIVEN_UP if number == ATTEMPTS else PENDING)
    assert len(pauses) == ATTEMPTS - 1
    assert sorted(pauses) == pytest.approx(pauses, rel=0.1), "the pauses grow, but for their jitter"
    assert delivery.HasField("end_time")
    assert len(delivery.attempts) == KEPT_ATTEMPT_COUNT
    starts = [one.start_time.ToNanoseconds() for one in delivery.attempts]
    assert starts == sorted(starts)
    assert await execute("select 1 from jobs") == []
    assert len(set(receiver.ids)) == 1
    assert not (await webhook_of(tenant)).paused
    time.now += 1_000
    assert await replay(tenant, delivery.event_id) == (1, False)
    await worker.run_due()
    [(pause,)] = await execute(DUE_IN)
    assert 0 < pause <= 5.5, "a replay has all attempts again"
    time.now += 1_000
    await run_again(worker, execute)
    [delivery] = await log_of(tenant)
    assert (delivery.state, delivery.attempt_count) == (DELIVERED, ATTEMPTS + 2)


async def test_no_receiver(tenant: Tenant, worker: JobWorker, execute: Execute) -> None:
    await put_webhook(tenant, NO_RECEIVER)
    await tenant.publish(run_ended())
    await worker.run_due()
    [delivery] = await log_of(tenant)
    assert [(one.status_code, one.error) for one in delivery.attempts] == [(0, NO_CONNECTION)]
    assert await execute("select last_error from jobs") == [(NO_CONNECTION,)]


async def test_a_receiver_whose_certificate_is_not_trusted_is_sent_nothing(
    mesh: HookMesh, tenant: Tenant, serve: Serve
) -> None:
    receiver = WebhookReceiver()
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    await (await mesh.worker()).deliveries.run_due()
    assert [one.error for one in (await log_of(tenant))[0].attempts] == [NO_CONNECTION]
    assert receiver.bodies == []


async def test_an_address_that_is_not_allowed_any_more_is_sent_nothing(
    mesh: HookMesh, tenant: Tenant, certificate: Path, serve: Serve
) -> None:
    receiver = WebhookReceiver()
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    worker = await mesh.worker(webhook_ca_file=certificate, allow_private_endpoints=False)
    await worker.deliveries.run_due()
    [delivery] = await log_of(tenant)
    assert [one.error for one in delivery.attempts] == ["the operator does not allow its address any more"]
    assert receiver.bodies == []


async def test_a_worker_that_dies_before_it_records_the_attempt_sends_the_message_again(
    mesh: HookMesh, tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver, called = WebhookReceiver(), asyncio.Event()

    async def respond(_request: web.Request) -> web.StreamResponse:
        called.set()
        await asyncio.Event().wait()
        raise AssertionError

    receiver.respond = respond
    put = await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    killed = asyncio.create_task(worker.run_due())
    async with asyncio.timeout(60):
        await called.wait()
    other = (await mesh.worker(webhook_ca_file=None)).deliveries
    assert await other.run_due() == 0, "the first worker has it"
    killed.cancel()
    await asyncio.gather(killed, return_exceptions=True)
    receiver.respond = None
    assert [one.attempt_count for one in await log_of(tenant)] == [0]
    await run_again(worker, execute)
    [delivery] = await log_of(tenant)
    assert (delivery.state, delivery.attempt_count) == (DELIVERED, 1)
    assert receiver.ids == [delivery.event_id] * 2
    assert len(receiver.messages(put.secret)) == 2


async def test_messages_are_sent_as_the_webhook_is_when_they_are_sent(
    tenant: Tenant, worker: JobWorker, serve: Serve
) -> None:
    before, after = WebhookReceiver(), WebhookReceiver()
    await put_webhook(tenant, await serve(before))
    await tenant.publish(run_ended())
    put = await put_webhook(tenant, await serve(after))
    await worker.run_due()
    assert before.bodies == []
    assert after.is_signed(put.secret)


async def test_a_circuit_breaker_keeps_other_messages_waiting_without_attempts(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    time, receiver, other = SkippedTime(worker), WebhookReceiver([500] * 3), WebhookReceiver()
    await put_webhook(tenant, await serve(receiver))
    await put_webhook(tenant, await serve(other), name="other")
    for number in range(3):
        await tenant.publish(run_ended(number))
        await worker.run_due()
    await tenant.publish(*map(run_ended, range(3, 8)))
    await worker.run_due()
    assert (len(receiver.bodies), len(other.bodies)) == (3, 8)
    assert sorted(one.attempt_count for one in await log_of(tenant)) == [0] * 5 + [1] * 3
    waiting = "select min(extract(epoch from due_time - now())) > 0, max(attempt_count) from jobs"
    assert await execute(f"{waiting} where last_error = 'the webhook fails'") == [(True, 0)]
    await run_again(worker, execute)
    assert len(receiver.bodies) == 3, "the breaker is open"
    time.now += 11
    for _ in range(2):  # The first message is a probe. Others may wait for its end.
        await run_again(worker, execute)
    log = await log_of(tenant)
    assert {one.state for one in log} == {DELIVERED}
    assert sorted(one.attempt_count for one in log) == [1] * 5 + [2] * 3
    assert len(receiver.ids) == 11


@pytest.mark.parametrize("change", [resume, put_webhook])
async def test_a_webhook_that_is_resumed_or_changed_has_a_closed_breaker(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute, change: Callable[..., object]
) -> None:
    SkippedTime(worker)
    receiver = WebhookReceiver([500] * 3)
    url = await serve(receiver)
    await put_webhook(tenant, url)
    await tenant.publish(*map(run_ended, range(3)))
    await worker.run_due()
    await run_again(worker, execute)
    assert len(receiver.bodies) == 3
    if change is resume:
        await resume(tenant)
    else:
        await put_webhook(tenant, url, timeout=Duration(seconds=20))
    await run_again(worker, execute)
    assert len(receiver.bodies) == 6
    assert {one.state for one in await log_of(tenant)} == {DELIVERED}


async def test_a_failing_webhook_delays_no_other_tenant(
    mesh: HookMesh, tenant: Tenant, worker: JobWorker, serve: Serve
) -> None:
    other, silent, quick = mesh.tenant(tenant._session), WebhookReceiver(), WebhookReceiver()
    called, received = asyncio.Event(), asyncio.Event()

    async def stay(_request: web.Request) -> web.StreamResponse:
        called.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def receive(_request: web.Request) -> web.StreamResponse:
        received.set()
        return web.Response()

    silent.respond, quick.respond = stay, receive
    await put_webhook(tenant, await serve(silent), timeout=Duration(seconds=30))
    await put_webhook(other, await serve(quick))
    await tenant.publish(*map(run_ended, range(40)))
    running = asyncio.create_task(worker.run_jobs_forever())
    async with asyncio.timeout(60):
        await called.wait()
    await other.publish(run_ended())
    async with asyncio.timeout(60):
        await received.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_old_messages_are_deleted_with_their_jobs(
    mesh: HookMesh, tenant: Tenant, serve: Serve, worker: JobWorker, execute: Execute
) -> None:
    await put_webhook(tenant, await serve(WebhookReceiver([204, 410])))
    for number in range(4):
        await tenant.publish(run_ended(number))
        await worker.run_due()
    assert [one.state for one in await log_of(tenant)] == [PENDING, PENDING, GIVEN_UP, DELIVERED]
    newest = (await log_of(tenant))[0].event_id
    old = "update webhook_deliveries set queue_time = now() - interval '31 days' where event_id <> %(newest)s"
    await execute(old, newest=newest)
    await (await mesh.worker()).pruner.prune()
    assert [one.event_id for one in await log_of(tenant)] == [newest]
    assert [event_id for (event_id,) in await execute("select arguments ->> 'event_id' from jobs")] == [
        newest
    ]
