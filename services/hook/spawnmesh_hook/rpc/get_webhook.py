"""GetWebhook: return one webhook of the tenant."""

from spawnmesh.hook.v1 import webhook_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.webhook_messages import render_webhook
from spawnmesh_hook.store import webhooks


async def get_webhook(
    request: pb.GetWebhookRequest, caller: Caller, deps: Dependencies
) -> pb.GetWebhookResponse:
    """Return the webhook. Raises NOT_FOUND."""
    async with deps.database.transaction(caller.tenant_id) as connection:
        webhook = await webhooks.get_webhook(connection, caller.tenant_id, request.name)
    return pb.GetWebhookResponse(webhook=render_webhook(webhook))
