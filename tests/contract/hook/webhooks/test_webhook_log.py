"""ListWebhookDeliveries and ReplayWebhookDeliveries."""

import asyncio
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.hook.v1 import webhook_pb2
from spawnmesh.hook.v1 import webhook_service_pb2 as pb
from spawnmesh_core.reasons import Reason
from spawnmesh_hook.store.webhook_deliveries import MAX_SCANNED_DELIVERIES
from spawnmesh_postgres.jobs.worker import JobWorker

from tests.support.hook.fixtures import HookMesh, Tenant, refused
from tests.support.hook.webhook_receiver import (
    DELIVERED,
    GIVEN_UP,
    NO_RECEIVER,
    PENDING,
    RUN_ENDED,
    SESSION_ENDED,
    Execute,
    HeldAnswers,
    Serve,
    WebhookReceiver,
    call_webhooks,
    end_the_day,
    log_of,
    pause,
    put_webhook,
    replay,
    rest_of_pause,
    resume,
    run_again,
    run_ended,
    send_test,
    session_ended,
)
from tests.support.waiting import eventually

EVER = Timestamp()
FILL = """
insert into webhook_deliveries
    (tenant_id, webhook_id, event_id, event_type, session_id, run_id, event_time, body, state, attempt_time,
     end_time)
select tenant_id, webhook_id, 'evt_' || lpad(n::text, 6, '0'), 'run.ended', 'ses_' || n %% 2, 'run_1',
    now() - interval '1 hour' + n * interval '1 millisecond', '{}', %(state)s,
    case when %(state)s = 'PENDING' then now() end, case when %(state)s <> 'PENDING' then now() end
from webhooks, generate_series(1, %(count)s) n
"""


async def give_up(worker: JobWorker, execute: Execute) -> None:
    """Make the one attempt of what is pending, a day after it was queued, and end the pause."""
    await end_the_day(execute)
    await worker.run_due()
    await execute("update webhooks set retry_time = now()")


async def fill(execute: Execute, count: int, state: str = "FAILED") -> None:
    """Log so many messages, of which each event is a millisecond later than the one before."""
    await execute(FILL, count=count, state=state)


async def pages_of(tenant: Tenant, **asked: Any) -> list[list[int]]:
    """Return the numbers of the messages on every page."""
    request, pages = pb.ListWebhookDeliveriesRequest(name="w", **asked), list[list[int]]()
    while not pages or request.page_token:
        page = await call_webhooks(tenant, "ListWebhookDeliveries", request)
        pages.append([int(one.event_id.removeprefix("evt_")) for one in page.deliveries])
        request.page_token = page.next_page_token
    return pages


async def test_ListWebhookDeliveries__by_state_type_session_and_time(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver([404])
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended(1))
    await give_up(worker, execute)
    await tenant.publish(session_ended())
    await worker.run_due()
    await tenant.publish(run_ended(3, session_id="ses_2"))
    rows = await log_of(tenant)
    assert [(one.event_type, one.session_id, one.run_id, one.state) for one in rows] == [
        (RUN_ENDED, "ses_2", "run_3", PENDING),
        (SESSION_ENDED, "ses_1", "", DELIVERED),
        (RUN_ENDED, "ses_1", "run_1", GIVEN_UP),
    ]
    assert [one.HasField("end_time") for one in rows] == [False, True, True]
    assert all(one.queue_time.ToNanoseconds() > 0 for one in rows)
    attempt = rows[2].attempts[0]
    assert (attempt.status_code, attempt.error) == (404, "HTTP status 404")
    assert attempt.latency.ToNanoseconds() > 0

    async def numbers(**conditions: Any) -> list[int]:
        return [rows.index(one) for one in await log_of(tenant, **conditions)]

    assert await numbers(state=PENDING) == [0]
    assert await numbers(state=DELIVERED) == [1]
    assert await numbers(state=GIVEN_UP) == [2]
    assert await numbers(event_type=RUN_ENDED) == [0, 2]
    assert await numbers(session_id="ses_1") == [1, 2]
    assert await numbers(session_id="ses_1", event_type=RUN_ENDED, state=DELIVERED) == []
    assert await numbers(start_time=rows[1].event_time) == [0, 1]
    assert await numbers(end_time=rows[1].event_time) == [2]
    for malformed in (
        {"end_time": Timestamp(seconds=10**15)},
        {"start_time": Timestamp(nanos=-1)},
        {"page_token": "bm8="},
        {"page_size": 1_001},
        {"state": 9},
        {"event_type": 99},
    ):
        with refused(Reason.INVALID_REQUEST):
            await log_of(tenant, **malformed)
    with refused(Reason.NOT_FOUND):
        await log_of(tenant, "another")


async def test_ListWebhookDeliveries__pages_behind_many_that_are_not_wanted(
    tenant: Tenant, execute: Execute
) -> None:
    count = 2 * MAX_SCANNED_DELIVERIES + 200
    await put_webhook(tenant, NO_RECEIVER)
    await fill(execute, count, "DELIVERED")
    failed = (1, MAX_SCANNED_DELIVERIES, count)
    ids = [f"evt_{number:06}" for number in failed]
    await execute("update webhook_deliveries set state = 'FAILED' where event_id = any (%(ids)s)", ids=ids)
    few = count // MAX_SCANNED_DELIVERIES + 1
    for size in (0, 1):
        pages = await pages_of(tenant, state=GIVEN_UP, page_size=size)
        assert [number for page in pages for number in page] == sorted(failed, reverse=True)
    assert await pages_of(tenant, session_id="another") == [[]] * few
    assert await pages_of(tenant, event_type=SESSION_ENDED) == [[]] * few
    everything = await pages_of(tenant, page_size=1000)
    assert [number for page in everything for number in page] == list(range(count, 0, -1))


async def test_ListWebhookDeliveries__events_of_one_time_are_on_one_page_each(
    tenant: Tenant, execute: Execute
) -> None:
    await put_webhook(tenant, NO_RECEIVER)
    await fill(execute, 9)
    await execute("update webhook_deliveries set event_time = now()")
    pages = await pages_of(tenant, page_size=2)
    assert [number for page in pages for number in page] == list(range(9, 0, -1))


async def test_ListWebhookDeliveries__a_token_of_another_list(
    mesh: HookMesh, tenant: Tenant, execute: Execute
) -> None:
    for name in ("w", "v"):
        await put_webhook(tenant, NO_RECEIVER, name=name)
    await fill(execute, 3)
    request = pb.ListWebhookDeliveriesRequest(name="w", page_size=1)
    token = (await call_webhooks(tenant, "ListWebhookDeliveries", request)).next_page_token
    other = mesh.tenant(tenant._session)
    await put_webhook(other, NO_RECEIVER)
    for caller, name, conditions in (
        (tenant, "v", {}),
        (tenant, "w", {"state": GIVEN_UP}),
        (tenant, "w", {"session_id": "ses_1"}),
        (other, "w", {}),
    ):
        with refused(Reason.INVALID_REQUEST):
            await log_of(caller, name, page_token=token, **conditions)
    assert await log_of(other) == []


async def test_ReplayWebhookDeliveries__by_id_with_the_same_id_and_body(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver([204, 500])
    put = await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended(1))
    await worker.run_due()
    await tenant.publish(run_ended(2))
    await give_up(worker, execute)
    await tenant.publish(run_ended(3))
    first, second = receiver.ids
    assert [one.state for one in await log_of(tenant)] == [PENDING, GIVEN_UP, DELIVERED]
    pending = (await log_of(tenant, state=PENDING))[0].event_id
    assert await replay(tenant, first, second, pending) == (2, False)
    replayed = {one.event_id: one for one in await log_of(tenant)}
    assert [one.state for one in replayed.values()] == [PENDING] * 3
    assert not replayed[first].HasField("end_time")
    assert (replayed[first].attempt_count, len(replayed[first].attempts)) == (1, 1)
    assert await replay(tenant, first) == (0, False)
    await worker.run_due()
    assert sorted(receiver.ids[2:]) == sorted([first, second, pending])
    assert len(receiver.messages(put.secret)) == 5
    bodies = dict(zip(receiver.ids[2:], receiver.bodies[2:], strict=True))
    assert [bodies[first], bodies[second]] == receiver.bodies[:2]
    log = {one.event_id: one for one in await log_of(tenant)}
    assert [log[one].attempt_count for one in (first, second, pending)] == [2, 2, 1]
    assert {one.state for one in log.values()} == {DELIVERED}
    assert log[first].queue_time.ToNanoseconds() == replayed[first].queue_time.ToNanoseconds()


async def test_ReplayWebhookDeliveries__an_unknown_message_changes_nothing(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver()
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    await worker.run_due()
    before = await log_of(tenant)
    with refused(Reason.NOT_FOUND):
        await replay(tenant, before[0].event_id, "evt_unknown")
    assert await log_of(tenant) == before
    assert await execute("select 1 from jobs") == []
    await put_webhook(tenant, NO_RECEIVER, name="other")
    with refused(Reason.NOT_FOUND):
        await replay(tenant, before[0].event_id, name="other")
    with refused(Reason.NOT_FOUND):
        await replay(tenant, failed_since=EVER, name="another")
    for ids in ([], ["a", "a"], [str(number) for number in range(101)], ["a" * 65], [""]):
        with refused(Reason.INVALID_REQUEST):
            await replay(tenant, *ids)
    with refused(Reason.INVALID_REQUEST):
        await call_webhooks(tenant, "ReplayWebhookDeliveries", pb.ReplayWebhookDeliveriesRequest(name="w"))
    with refused(Reason.INVALID_REQUEST):
        await replay(tenant, failed_since=Timestamp(seconds=10**15))


async def test_ReplayWebhookDeliveries__those_that_were_given_up_since(
    tenant: Tenant, execute: Execute
) -> None:
    await put_webhook(tenant, NO_RECEIVER)
    await fill(execute, 2_300)
    await execute("update webhook_deliveries set state = 'DELIVERED' where event_id > 'evt_002200'")
    log = await log_of(tenant, session_id="ses_1", page_size=1000)
    since = next(one.event_time for one in log if one.event_id == "evt_002101")
    assert await replay(tenant, failed_since=since) == (100, False)
    assert await replay(tenant, failed_since=since) == (0, False)
    assert await replay(tenant, failed_since=EVER) == (1_000, True)
    oldest = "select min(event_id), max(event_id), count(*) from webhook_deliveries where state = 'PENDING'"
    assert await execute(f"{oldest} and event_id < 'evt_002101'") == [("evt_000001", "evt_001000", 1_000)]
    assert await replay(tenant, failed_since=EVER) == (1_000, True)
    assert await replay(tenant, failed_since=EVER) == (100, False)
    assert await replay(tenant, failed_since=EVER) == (0, False)
    assert await execute("select count(*) from jobs") == [(1,)]


async def test_ReplayWebhookDeliveries__exactly_as_many_as_one_call_takes(
    tenant: Tenant, execute: Execute
) -> None:
    await put_webhook(tenant, NO_RECEIVER)
    await fill(execute, 1_000)
    assert await replay(tenant, failed_since=EVER) == (1_000, False)


async def test_ReplayWebhookDeliveries__twice_at_once(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver()
    await put_webhook(tenant, await serve(receiver))
    await fill(execute, 40)
    counts = await asyncio.gather(*(replay(tenant, failed_since=EVER) for _ in range(4)))
    assert sorted(counts) == [(0, False)] * 3 + [(40, False)]
    await worker.run_due()
    assert len(receiver.ids) == len(set(receiver.ids)) == 40


async def test_ReplayWebhookDeliveries__while_the_last_attempt_of_the_round_is_in_progress(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    """The attempt of the first round must not end the second round."""
    receiver = WebhookReceiver()
    held = HeldAnswers(receiver, 500)
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    working = asyncio.create_task(worker.run_due())
    await eventually(lambda: held.waiting)
    # Another worker, whose claim it was before, has recorded the end of the round meanwhile.
    await execute("update webhook_deliveries set state = 'FAILED', end_time = now(), attempt_time = null")
    [delivery] = await log_of(tenant)
    assert await replay(tenant, delivery.event_id) == (1, False)
    assert await execute("select count(*) from jobs") == [(1,)]
    held.release(2)
    await working
    assert await execute("select round, round_attempt_count, state from webhook_deliveries") == [
        (2, 0, "PENDING")
    ]
    held.status = 200
    await run_again(worker, execute)
    [delivery] = await log_of(tenant)
    assert (delivery.state, [one.status_code for one in delivery.attempts]) == (DELIVERED, [200])
    assert receiver.ids == [delivery.event_id] * 2
    assert await run_again(worker, execute) == 0


async def test_ReplayWebhookDeliveries__of_a_paused_webhook_waits(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver([500])
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    await give_up(worker, execute)
    await pause(tenant)
    assert await replay(tenant, failed_since=EVER) == (1, False)
    await worker.run_due()
    assert len(receiver.bodies) == 1
    await resume(tenant)
    await worker.run_due()
    assert len(receiver.bodies) == 2
    assert [one.state for one in await log_of(tenant)] == [DELIVERED]


async def test_ReplayWebhookDeliveries__a_message_has_another_day_of_attempts(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver([500] * 8)
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    for _ in range(6):
        await run_again(worker, execute)
    await end_the_day(execute)
    await run_again(worker, execute)
    [delivery] = await log_of(tenant)
    assert (delivery.state, delivery.attempt_count) == (GIVEN_UP, 7)
    assert await replay(tenant, delivery.event_id) == (1, False)
    await run_again(worker, execute)
    assert 0 < await rest_of_pause(execute) <= 5.5, "its pauses begin anew"
    [delivery] = await log_of(tenant)
    assert (delivery.state, delivery.attempt_count) == (PENDING, 8)


@pytest.mark.parametrize("status", [204, 500])
async def test_ReplayWebhookDeliveries__a_test_is_never_sent_again(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute, status: int
) -> None:
    receiver = WebhookReceiver([status])
    await put_webhook(tenant, await serve(receiver))
    delivery = await send_test(tenant)
    assert delivery.event_type == webhook_pb2.WEBHOOK_EVENT_TYPE_WEBHOOK_TEST
    assert await replay(tenant, delivery.event_id) == (0, False)
    assert await replay(tenant, failed_since=EVER) == (0, False)
    await tenant.publish(run_ended())
    await worker.run_due()
    [message] = await log_of(tenant, state=DELIVERED, event_type=RUN_ENDED)
    assert await replay(tenant, message.event_id, delivery.event_id) == (1, False)
    await worker.run_due()
    assert receiver.ids == [delivery.event_id, message.event_id, message.event_id]
    assert await log_of(tenant, event_type=webhook_pb2.WEBHOOK_EVENT_TYPE_WEBHOOK_TEST) == [delivery]
