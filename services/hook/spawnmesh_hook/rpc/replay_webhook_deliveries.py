"""ReplayWebhookDeliveries: send messages of a webhook again."""

from spawnmesh.hook.v1 import webhook_service_pb2 as pb
from spawnmesh_calls.wire_times import time_of
from spawnmesh_runtime.caller import Caller
from spawnmesh_runtime.telemetry import current_traceparent

from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.store import webhook_deliveries, webhooks

_MAX_REPLAYED = 1_000


async def replay_webhook_deliveries(
    request: pb.ReplayWebhookDeliveriesRequest, caller: Caller, deps: Dependencies
) -> pb.ReplayWebhookDeliveriesResponse:
    """Queue those of the messages that are not pending. Raises NOT_FOUND, with nothing queued."""
    tenant_id, is_partial = caller.tenant_id, False
    async with deps.database.adding(tenant_id) as connection:
        # Locked before its messages, as everywhere.
        webhook_id = (await webhooks.lock_webhook(connection, tenant_id, request.name)).webhook_id
        if request.WhichOneof("messages") == "events":
            event_ids = list(request.events.event_ids)
            await webhook_deliveries.require_messages(connection, tenant_id, webhook_id, event_ids)
        else:
            since = time_of(request.failed_since_time, "failed_since_time")
            failed = await webhook_deliveries.list_failed(
                connection, tenant_id, webhook_id, since, _MAX_REPLAYED + 1
            )
            event_ids, is_partial = failed[:_MAX_REPLAYED], len(failed) > _MAX_REPLAYED
        replayed_count = await webhook_deliveries.replay_messages(
            connection, tenant_id, webhook_id, event_ids, current_traceparent()
        )
    return pb.ReplayWebhookDeliveriesResponse(replayed_count=replayed_count, is_partial=is_partial)
