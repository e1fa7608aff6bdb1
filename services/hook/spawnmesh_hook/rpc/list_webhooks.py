"""ListWebhooks: list the tenant's webhooks, page by page."""

from spawnmesh.hook.v1 import webhook_service_pb2 as pb
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.webhook_messages import render_webhook
from spawnmesh_hook.store import webhooks

_DEFAULT_PAGE_SIZE = 100


async def list_webhooks(
    request: pb.ListWebhooksRequest, caller: Caller, deps: Dependencies
) -> pb.ListWebhooksResponse:
    """Return a page, ordered by name. Raises INVALID_REQUEST for a page token of another list."""
    last = position_of(request, (str,), caller.tenant_id)
    size = request.page_size or _DEFAULT_PAGE_SIZE
    async with deps.database.transaction(caller.tenant_id) as connection:
        listed = await webhooks.list_webhooks(connection, caller.tenant_id)
    found = [webhook for webhook in listed if last is None or webhook.name > last[0]]
    page = found[:size]
    return pb.ListWebhooksResponse(
        webhooks=map(render_webhook, page),
        next_page_token=page_token((page[-1].name,), request, caller.tenant_id) if len(found) > size else "",
    )
