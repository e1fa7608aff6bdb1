"""TestWebhook: send a webhook one message, now."""

from spawnmesh.hook.v1 import webhook_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.operations import event_messages
from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.webhook_messages import render_delivery
from spawnmesh_hook.store import webhook_deliveries, webhooks


async def test_webhook(
    request: pb.TestWebhookRequest, caller: Caller, deps: Dependencies
) -> pb.TestWebhookResponse:
    """Send a message once, also while the webhook is paused, and log it. Raises NOT_FOUND.

    A failure says nothing about the messages that wait.
    """
    tenant_id = caller.tenant_id
    async with deps.database.transaction(tenant_id) as connection:
        webhook = await webhooks.get_webhook(connection, tenant_id, request.name)
    message = event_messages.test_message(webhook.name)
    attempt = await deps.webhook_sender.send(tenant_id, webhook, message)
    async with deps.database.adding(tenant_id) as connection:
        if not attempt.error:  # It is well. What waits need not wait any longer.
            await webhooks.record_success(connection, tenant_id, webhook.webhook_id, attempt.start_time)
            if webhook.failing_since is not None:
                await webhook_deliveries.wake_jobs(connection, tenant_id, [webhook.webhook_id])
        delivery = await webhook_deliveries.insert_test(
            connection, tenant_id, webhook.webhook_id, message, attempt
        )
    return pb.TestWebhookResponse(delivery=render_delivery(delivery))
