"""DeleteWebhook: delete a webhook of the tenant."""

from spawnmesh.hook.v1 import webhook_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.domain.webhooks import check_webhook_etag
from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.store import plugins, webhook_deliveries, webhooks


async def delete_webhook(
    request: pb.DeleteWebhookRequest, caller: Caller, deps: Dependencies
) -> pb.DeleteWebhookResponse:
    """Delete the webhook if it exists, with the messages that wait. Raises ETAG_DIFFERS."""
    tenant_id, name = caller.tenant_id, request.name
    async with deps.database.transaction(tenant_id) as connection:
        current = await webhooks.find_and_lock_webhook(connection, tenant_id, name)
        if current is None:
            return pb.DeleteWebhookResponse()
        check_webhook_etag("etag", request.etag, current)
        await webhooks.delete_webhook(connection, tenant_id, name)
        await webhook_deliveries.delete_job(connection, tenant_id, current.webhook_id)
        await plugins.notify_plugins_changed(connection)
    deps.plugin_cache.invalidate()
    return pb.DeleteWebhookResponse()
