"""Messages to webhooks: their form, their signature, and their way into the log."""

from collections.abc import Awaitable, Callable

from spawnmesh_postgres.jobs.worker import JobWorker

from tests.support.hook.fixtures import Tenant
from tests.support.hook.webhook_receiver import (
    DELIVERED,
    WebhookReceiver,
    log_of,
    put_webhook,
    run_ended,
)


async def test_a_message_is_signed_and_logged(
    tenant: Tenant, worker: JobWorker, serve: Callable[[WebhookReceiver], Awaitable[str]]
) -> None:
    receiver = WebhookReceiver()
    put = await put_webhook(tenant, await serve(receiver))
    assert await tenant.publish(run_ended()) == 1
    await worker.run_due()
    [message] = receiver.messages(put.secret)
    assert message["type"] == "run.ended"
    assert message["data"] == {"session_id": "ses_1", "run_id": "run_1", "outcome": "SUCCEEDED"}
    [delivery] = await log_of(tenant)
    assert (delivery.state, delivery.attempt_count, delivery.event_id) == (DELIVERED, 1, receiver.ids[0])
    assert [(one.status_code, one.error) for one in delivery.attempts] == [(204, "")]
    assert delivery.body_json.encode() == receiver.bodies[0]
