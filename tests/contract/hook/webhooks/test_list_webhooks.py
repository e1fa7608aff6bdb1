"""ListWebhooks: the webhooks of the tenant, page by page."""

from spawnmesh.hook.v1 import webhook_service_pb2 as pb
from spawnmesh_core.reasons import Reason

from tests.support.hook.fixtures import HookMesh, Tenant, refused
from tests.support.hook.webhook_receiver import (
    NO_RECEIVER,
    call_webhooks,
    names_of,
    put_webhook,
)


async def test_ListWebhooks__page_by_page_by_name(mesh: HookMesh, tenant: Tenant) -> None:
    await put_webhook(mesh.tenant(tenant._session), NO_RECEIVER, name="b-of-another")
    for name in ("c", "a", "e", "b", "d", "a-b"):
        await put_webhook(tenant, NO_RECEIVER, name=name)
    request, pages = pb.ListWebhooksRequest(page_size=2), []
    while not pages or request.page_token:
        page = await call_webhooks(tenant, "ListWebhooks", request)
        pages.append([one.name for one in page.webhooks])
        request.page_token = page.next_page_token
    assert pages == [["a", "a-b"], ["b", "c"], ["d", "e"]]
    assert await names_of(tenant) == sorted(("c", "a", "e", "b", "d", "a-b"))
    for malformed in (pb.ListWebhooksRequest(page_token="bm8="), pb.ListWebhooksRequest(page_size=-1)):
        with refused(Reason.INVALID_REQUEST):
            await call_webhooks(tenant, "ListWebhooks", malformed)
