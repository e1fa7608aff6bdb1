"""PauseWebhook: let the messages of a webhook wait until it is resumed."""

from spawnmesh.hook.v1 import webhook_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.webhook_messages import render_webhook
from spawnmesh_hook.store import webhooks


async def pause_webhook(
    request: pb.PauseWebhookRequest, caller: Caller, deps: Dependencies
) -> pb.PauseWebhookResponse:
    """Pause the webhook and return it. Raises NOT_FOUND."""
    async with deps.database.transaction(caller.tenant_id) as connection:
        webhook = await webhooks.pause_webhook(connection, caller.tenant_id, request.name)
    return pb.PauseWebhookResponse(webhook=render_webhook(webhook))
