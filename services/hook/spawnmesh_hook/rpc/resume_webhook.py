"""ResumeWebhook: send what waits for a paused webhook, and what comes."""

from spawnmesh.hook.v1 import webhook_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.webhook_messages import render_webhook
from spawnmesh_hook.store import webhook_deliveries, webhooks


async def resume_webhook(
    request: pb.ResumeWebhookRequest, caller: Caller, deps: Dependencies
) -> pb.ResumeWebhookResponse:
    """Resume the webhook, make all its messages due, and return it. Raises NOT_FOUND."""
    tenant_id = caller.tenant_id
    async with deps.database.adding(tenant_id) as connection:
        webhook = await webhooks.resume_webhook(connection, tenant_id, request.name)
        await webhook_deliveries.hasten_messages(connection, tenant_id, webhook.webhook_id)
    return pb.ResumeWebhookResponse(webhook=render_webhook(webhook))
