"""Messages that are sent again or given up: attempts, probes of failing webhooks, and retention."""

import asyncio
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh_hook.domain.webhooks import KEPT_ATTEMPT_COUNT
from spawnmesh_postgres.jobs.worker import JobWorker

from tests.support.hook.fixtures import HookMesh, Tenant
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
    put_webhook,
    replay,
    rest_of_failure,
    rest_of_pause,
    run_again,
    run_ended,
    webhook_of,
)
from tests.support.waiting import eventually

NO_CONNECTION = "no connection, or it ended before the answer"
FIRST_ATTEMPTS = 4
"""The first requests to a webhook that fails are made at the same time."""
FAILURE = "select failing_since, failure_count, retry_time from webhooks"
ATTEMPTS = "select sum(attempt_count)::integer, max(attempt_count) from webhook_deliveries"
BACKLOG = """
insert into webhook_deliveries
    (tenant_id, webhook_id, event_id, event_type, session_id, run_id, event_time, body, state, attempt_time)
select tenant_id, webhook_id, 'evt_' || n, 'run.ended', 'ses_1', 'run_1', now(), '{}', 'PENDING', now()
from webhooks, generate_series(1, %(count)s) n
"""


async def test_a_message_is_given_up_after_a_day_of_attempts(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    count = KEPT_ATTEMPT_COUNT + 3
    receiver, pauses = WebhookReceiver([500] * count), []
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    for number in range(1, count):
        await run_again(worker, execute)
        pauses.append(await rest_of_pause(execute))
        [delivery] = await log_of(tenant)
        assert (delivery.state, delivery.attempt_count) == (PENDING, number)
        assert len(receiver.bodies) == number
    assert sorted(pauses) == pytest.approx(pauses, rel=0.1), "the pauses grow, but for their jitter"
    assert 0 < pauses[0] <= 5.5
    assert 4 * 3_600 - 60 < pauses[-1] <= 4 * 3_600 * 1.1
    await end_the_day(execute)
    await run_again(worker, execute)
    [delivery] = await log_of(tenant)
    assert (delivery.state, delivery.attempt_count) == (GIVEN_UP, count)
    assert delivery.HasField("end_time")
    assert len(delivery.attempts) == KEPT_ATTEMPT_COUNT
    starts = [one.start_time.ToNanoseconds() for one in delivery.attempts]
    assert starts == sorted(starts)
    assert await execute("select 1 from jobs") == []
    assert len(set(receiver.ids)) == 1
    assert not (await webhook_of(tenant)).paused
    assert await replay(tenant, delivery.event_id) == (1, False)
    await run_again(worker, execute)
    [delivery] = await log_of(tenant)
    assert (delivery.state, delivery.attempt_count) == (DELIVERED, count + 1)


async def test_what_waits_for_a_day_behind_messages_that_fail_is_given_up(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver([500] * (FIRST_ATTEMPTS + 1))
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(*map(run_ended, range(20)))
    await worker.run_due()
    await end_the_day(execute)
    await tenant.publish(run_ended(99))
    assert [one.state for one in await log_of(tenant)] == [PENDING] * 21
    # Those that were sent wait for their next attempts, which decide.
    await execute("update webhooks set retry_time = now()")
    await execute("update jobs set due_time = now()")
    await worker.run_due()
    assert len(receiver.bodies) == FIRST_ATTEMPTS + 1, "the probe alone"
    log = {one.run_id: one for one in await log_of(tenant)}
    assert log["run_99"].state == PENDING
    given_up = [one for one in log.values() if one.state == GIVEN_UP]
    assert [one.attempt_count for one in given_up].count(0) == len(given_up) - 1 == 20 - FIRST_ATTEMPTS - 1
    assert all(one.HasField("end_time") for one in given_up)
    await run_again(worker, execute)
    log = {one.run_id: one for one in await log_of(tenant)}
    assert {one.state for one in log.values() if one.attempt_count == 2} == {DELIVERED}
    assert log["run_99"].state == DELIVERED


async def test_a_webhook_that_does_not_fail_is_sent_also_what_is_a_day_old(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    """The service was away for days."""
    await put_webhook(tenant, await serve(WebhookReceiver()))
    await tenant.publish(*map(run_ended, range(20)))
    for _ in range(3):
        await end_the_day(execute)
    await worker.run_due()
    assert {one.state for one in await log_of(tenant)} == {DELIVERED}


async def test_a_failing_webhook_is_probed_by_one_message_before_the_rest_follows(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver([500] * (FIRST_ATTEMPTS + 2))
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(*map(run_ended, range(24)))
    await worker.run_due()
    assert await execute(ATTEMPTS) == [(FIRST_ATTEMPTS, 1)]
    assert 0 < await rest_of_failure(execute) <= 5
    await tenant.publish(run_ended(24))
    await execute("update jobs set due_time = now()")
    assert await worker.run_due() == 1
    assert len(receiver.bodies) == FIRST_ATTEMPTS, "it is left alone, also with another message"
    previous = 5.0
    for number in (1, 2):
        await execute("update webhooks set retry_time = now()")
        await execute("update jobs set due_time = now()")
        assert await worker.run_due() == 1
        assert await execute(ATTEMPTS) == [(FIRST_ATTEMPTS + number, 1)], "a probe of a message that waits"
        assert previous < await rest_of_failure(execute)
        previous = await rest_of_failure(execute)
    held = HeldAnswers(receiver)
    working = asyncio.create_task(run_again(worker, execute))
    await eventually(lambda: held.waiting)
    held.release()
    await eventually(lambda: len(receiver.bodies) > FIRST_ATTEMPTS + 3)
    assert await execute(FAILURE) == [(None, 0, None)], "the probe was received"
    held.release(25)
    await working
    assert {one.state for one in await log_of(tenant)} == {DELIVERED}
    assert len(set(receiver.ids)) == 25


async def test_a_backlog_behind_a_dead_webhook_costs_one_request_and_one_claim_each_time(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver([503] * 100)
    await put_webhook(tenant, await serve(receiver))
    await execute(BACKLOG, count=2_000)
    await tenant.publish(run_ended())
    assert await worker.run_due() == 1
    assert len(receiver.bodies) == FIRST_ATTEMPTS
    for number in range(1, 6):
        assert await run_again(worker, execute) == 1
        assert len(receiver.bodies) == FIRST_ATTEMPTS + number
        assert await worker.run_due() == 0
        await execute("update jobs set due_time = now()")
        assert await worker.run_due() == 1, "it looks whether it may be sent something"
        assert len(receiver.bodies) == FIRST_ATTEMPTS + number
    assert await execute("select count(*) from jobs") == [(1,)]


async def test_a_retry_after_holds_the_webhook_back(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver([500])
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended(1))
    await execute("update webhooks set failing_since = now(), failure_count = 3")
    await worker.run_due()
    assert 35 < await rest_of_failure(execute) <= 40
    await execute("update webhooks set retry_time = now() + interval '200 seconds'")
    await tenant.publish(run_ended(2))
    assert await worker.run_due() == 1
    assert len(receiver.bodies) == 1
    [(reason,)] = await execute("select last_error from jobs")
    assert reason == "the webhook fails"


@pytest.mark.parametrize("is_same", [False, True])
async def test_another_url_counts_as_not_failing(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute, is_same: bool
) -> None:
    failing, other = WebhookReceiver([500] * 100), WebhookReceiver()
    url = await serve(failing)
    await put_webhook(tenant, url)
    await tenant.publish(*map(run_ended, range(10)))
    await worker.run_due()
    [before] = await execute(FAILURE)
    assert before[1] == 1, "requests at the same time are one failure"
    changed = await put_webhook(tenant, url if is_same else await serve(other), timeout=Duration(seconds=20))
    assert changed.webhook.timeout.seconds == 20
    assert changed.webhook.HasField("failing_since_time") == is_same
    assert await execute(FAILURE) == ([before] if is_same else [(None, 0, None)])
    await execute("update jobs set due_time = now()")
    await worker.run_due()
    assert (len(failing.bodies), len(other.bodies)) == (FIRST_ATTEMPTS, 0 if is_same else 6)


async def test_no_receiver(tenant: Tenant, worker: JobWorker, execute: Execute) -> None:
    await put_webhook(tenant, NO_RECEIVER)
    await tenant.publish(run_ended())
    await worker.run_due()
    [delivery] = await log_of(tenant)
    assert [(one.status_code, one.error) for one in delivery.attempts] == [(0, NO_CONNECTION)]
    assert await execute("select last_error from jobs") == [("the webhook fails",)]


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
    receiver = WebhookReceiver()
    held = HeldAnswers(receiver)
    put = await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    killed = asyncio.create_task(worker.run_due())
    await eventually(lambda: held.waiting)
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


async def test_old_messages_are_deleted(
    mesh: HookMesh, tenant: Tenant, serve: Serve, worker: JobWorker, execute: Execute
) -> None:
    receiver = WebhookReceiver([204, 500])
    await put_webhook(tenant, await serve(receiver))
    for number in range(4):
        await tenant.publish(run_ended(number))
        await worker.run_due()
    assert [one.state for one in await log_of(tenant)] == [PENDING, PENDING, PENDING, DELIVERED]
    newest = (await log_of(tenant))[0].event_id
    old = "update webhook_deliveries set queue_time = now() - interval '31 days' where event_id <> %(newest)s"
    await execute(old, newest=newest)
    await (await mesh.worker()).pruner.prune()
    assert [one.event_id for one in await log_of(tenant)] == [newest]
    await run_again(worker, execute)
    assert [one.state for one in await log_of(tenant)] == [DELIVERED]
    assert len(receiver.bodies) == 3
    assert await execute("select 1 from jobs") == []
