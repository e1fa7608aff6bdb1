"""RotateWebhookSecret and TestWebhook."""

import asyncio
from datetime import UTC, datetime

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.hook.v1 import webhook_pb2
from spawnmesh.hook.v1 import webhook_service_pb2 as pb
from spawnmesh_core.clock import utc_now
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.jobs.worker import JobWorker
from standardwebhooks import Webhook

from tests.support.hook.fixtures import HookMesh, Tenant, refused
from tests.support.hook.webhook_receiver import (
    DELIVERED,
    GIVEN_UP,
    NO_RECEIVER,
    Execute,
    Serve,
    WebhookReceiver,
    call_webhooks,
    log_of,
    pause,
    put_webhook,
    rotate,
    run_ended,
    send_test,
    webhook_of,
)

DAY = 86_400


async def signed_by(
    receiver: WebhookReceiver, tenant: Tenant, worker: JobWorker, *secrets: str
) -> list[bool]:
    """Send a message. Return for each secret whether it has signed it."""
    await tenant.publish(run_ended(len(receiver.bodies)))
    await worker.run_due()
    assert len(receiver.headers[-1]["webhook-signature"].split()) <= 2
    return [receiver.is_signed(secret) for secret in secrets]


async def test_RotateWebhookSecret__both_secrets_sign_until_the_previous_one_expires(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver()
    put = await put_webhook(tenant, await serve(receiver))
    first = put.secret
    assert await signed_by(receiver, tenant, worker, first) == [True]
    rotated = await rotate(tenant, "r1", keep_seconds=3_600)
    second = rotated.secret
    assert second.startswith("whsec_")
    assert second != first
    assert rotated.webhook.etag != put.webhook.etag
    left = rotated.webhook.previous_secret_expire_time.ToSeconds() - utc_now().timestamp()
    assert 3_000 < left <= 3_601
    assert await webhook_of(tenant) == rotated.webhook
    assert await signed_by(receiver, tenant, worker, first, second) == [True, True]
    newest, _ = receiver.headers[-1]["webhook-signature"].split()
    assert newest in Webhook(second).sign(receiver.ids[-1], _sent(receiver), receiver.bodies[-1].decode()), (
        "the newest comes first"
    )
    await execute("update webhooks set previous_secret_until = now()")
    assert await signed_by(receiver, tenant, worker, first, second) == [False, True]
    assert not (await webhook_of(tenant)).HasField("previous_secret_expire_time")


def _sent(receiver: WebhookReceiver) -> datetime:
    return datetime.fromtimestamp(int(receiver.headers[-1]["webhook-timestamp"]), UTC)


async def test_RotateWebhookSecret__the_same_request_again(tenant: Tenant) -> None:
    await put_webhook(tenant, NO_RECEIVER)
    first = await rotate(tenant, "r1")
    assert await rotate(tenant, "r1", keep_seconds=0) == first
    second = await rotate(tenant, "r2")
    assert second.secret != first.secret
    assert await rotate(tenant, "r2") == second
    third = await rotate(tenant, "r1")
    assert third.secret not in (first.secret, second.secret), "only the last request is remembered"
    assert len({one.secret for one in await asyncio.gather(*(rotate(tenant, "r4") for _ in range(4)))}) == 1


async def test_RotateWebhookSecret__a_day_by_default(tenant: Tenant) -> None:
    await put_webhook(tenant, NO_RECEIVER)
    webhook = (await rotate(tenant, "r1")).webhook
    left = webhook.previous_secret_expire_time.ToSeconds() - utc_now().timestamp()
    assert DAY - 600 < left <= DAY + 1


async def test_RotateWebhookSecret__a_secret_that_others_know_signs_nothing_more(
    tenant: Tenant, worker: JobWorker, serve: Serve
) -> None:
    receiver = WebhookReceiver()
    first = (await put_webhook(tenant, await serve(receiver))).secret
    second = await rotate(tenant, "r1", keep_seconds=0)
    assert not second.webhook.HasField("previous_secret_expire_time")
    assert await signed_by(receiver, tenant, worker, first, second.secret) == [False, True]


@pytest.mark.parametrize("keep_seconds", [0, 3_600])
async def test_RotateWebhookSecret__of_two_rotations_the_last_one_decides(
    tenant: Tenant, worker: JobWorker, serve: Serve, keep_seconds: int
) -> None:
    receiver = WebhookReceiver()
    first = (await put_webhook(tenant, await serve(receiver))).secret
    second = (await rotate(tenant, "r1")).secret
    third = (await rotate(tenant, "r2", keep_seconds=keep_seconds)).secret
    signed = await signed_by(receiver, tenant, worker, first, second, third)
    assert signed == [False, keep_seconds > 0, True]


async def test_RotateWebhookSecret__the_secret_stays_with_the_webhook(tenant: Tenant) -> None:
    await put_webhook(tenant, NO_RECEIVER)
    rotated = await rotate(tenant, "r1")
    changed = await put_webhook(tenant, f"{NO_RECEIVER}/b")
    assert changed.secret == rotated.secret
    assert changed.webhook.previous_secret_expire_time == rotated.webhook.previous_secret_expire_time


@pytest.mark.parametrize(
    "fields",
    [
        {"request_id": ""},
        {"request_id": "a" * 129},
        {"request_id": "r", "keep_previous": Duration(seconds=-1)},
        {"request_id": "r", "keep_previous": Duration(seconds=7 * DAY + 1)},
    ],
)
async def test_RotateWebhookSecret__a_malformed_request(tenant: Tenant, fields: dict[str, object]) -> None:
    before = await put_webhook(tenant, NO_RECEIVER)
    with refused(Reason.INVALID_REQUEST):
        await call_webhooks(
            tenant,
            "RotateWebhookSecret",
            pb.RotateWebhookSecretRequest(name="w", **fields),  # type: ignore[arg-type]
        )
    with refused(Reason.NOT_FOUND):
        await rotate(tenant, "r", name="another")
    assert await put_webhook(tenant, NO_RECEIVER) == before


async def test_no_secret_is_stored(
    mesh: HookMesh, tenant: Tenant, worker: JobWorker, execute: Execute
) -> None:
    secrets = [(await put_webhook(tenant, NO_RECEIVER)).secret, (await rotate(tenant, "r")).secret]
    await tenant.publish(run_ended())
    await worker.run_due()
    for table in ("webhooks", "webhook_deliveries", "jobs", "audit_events"):
        stored = str(await execute(f"select {table}::text from {table}"))
        for secret in secrets:
            assert secret.removeprefix("whsec_") not in stored, table


@pytest.mark.parametrize("is_paused", [False, True])
async def test_TestWebhook__sends_one_message(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute, is_paused: bool
) -> None:
    receiver = WebhookReceiver()
    put = await put_webhook(tenant, await serve(receiver))
    if is_paused:
        await pause(tenant)
    delivery = await send_test(tenant)
    [message] = receiver.messages(put.secret)
    assert (message["type"], message["data"]) == ("webhook.test", {"webhook": "w"})
    assert (delivery.state, delivery.attempt_count) == (DELIVERED, 1)
    assert delivery.event_type == webhook_pb2.WEBHOOK_EVENT_TYPE_WEBHOOK_TEST
    assert [(one.status_code, one.error) for one in delivery.attempts] == [(204, "")]
    assert delivery.body_json.encode() == receiver.bodies[0]
    assert await log_of(tenant) == [delivery]
    await worker.run_due()
    assert len(receiver.bodies) == 1
    assert await execute("select 1 from jobs") == []
    again = await send_test(tenant)
    assert again.event_id != delivery.event_id
    assert (await webhook_of(tenant)).paused == is_paused


@pytest.mark.parametrize("status", [302, 404, 410, 500])
async def test_TestWebhook__a_failure_is_not_sent_again(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute, status: int
) -> None:
    receiver = WebhookReceiver([status])
    before = (await put_webhook(tenant, await serve(receiver))).webhook
    delivery = await send_test(tenant)
    assert (delivery.state, delivery.attempt_count) == (GIVEN_UP, 1)
    assert delivery.HasField("end_time")
    assert [(one.status_code, one.error) for one in delivery.attempts] == [(status, f"HTTP status {status}")]
    assert await log_of(tenant) == [delivery]
    assert await execute("select 1 from jobs") == []
    assert await webhook_of(tenant) == before


async def test_TestWebhook__one_that_is_received_ends_the_failure(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver([500, 503])
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    await worker.run_due()
    failure = "select failing_since, failure_count, retry_time from webhooks"
    failing, [before] = await webhook_of(tenant), await execute(failure)
    assert failing.HasField("failing_since_time")
    assert (await send_test(tenant)).state == GIVEN_UP
    assert (await webhook_of(tenant), await execute(failure)) == (failing, [before])
    assert (await send_test(tenant)).state == DELIVERED
    assert await execute(failure) == [(None, 0, None)]
    assert (await webhook_of(tenant)).etag == failing.etag


async def test_TestWebhook__no_receiver_and_no_webhook(tenant: Tenant) -> None:
    await put_webhook(tenant, NO_RECEIVER)
    delivery = await send_test(tenant)
    assert [(one.status_code, one.error) for one in delivery.attempts] == [
        (0, "no connection, or it ended before the answer")
    ]
    with refused(Reason.NOT_FOUND):
        await send_test(tenant, "another")
