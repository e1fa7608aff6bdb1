"""RotateWebhookSecret: give a webhook another secret."""

from spawnmesh.hook.v1 import webhook_service_pb2 as pb
from spawnmesh_core.clock import utc_now
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.domain.webhooks import DEFAULT_OVERLAP, rotated
from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.webhook_messages import render_webhook
from spawnmesh_hook.store import webhooks


async def rotate_webhook_secret(
    request: pb.RotateWebhookSecretRequest, caller: Caller, deps: Dependencies
) -> pb.RotateWebhookSecretResponse:
    """Store another secret, unless this rotation is the last one, and return it.

    Raises NOT_FOUND.
    """
    tenant_id, now = caller.tenant_id, utc_now()
    has_overlap = request.HasField("keep_previous")
    overlap = request.keep_previous.ToTimedelta() if has_overlap else DEFAULT_OVERLAP
    async with deps.database.transaction(tenant_id) as connection:
        current = await webhooks.lock_webhook(connection, tenant_id, request.name)
        webhook = rotated(current, request.request_id, overlap, now)
        if webhook != current:
            webhook = await webhooks.write_rotation(connection, tenant_id, webhook)
    [secret, *_] = deps.secrets.of_webhook(tenant_id, webhook, now)
    return pb.RotateWebhookSecretResponse(webhook=render_webhook(webhook), secret=secret)
