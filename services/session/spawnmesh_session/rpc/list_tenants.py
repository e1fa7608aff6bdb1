"""ListTenants.

Returns the tenants by id, page by page, including those that are being deleted and without those
that are DELETED.
"""

from spawnmesh.session.v1.tenant_service_pb2 import ListTenantsRequest, ListTenantsResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_page, render_next_page, render_tenant
from spawnmesh_session.store import tenants


async def list_tenants(
    request: ListTenantsRequest, caller: Caller, deps: Dependencies
) -> ListTenantsResponse:
    """Return a page of every tenant, by id."""
    page = parse_page(request, caller)
    listed = await tenants.list_tenants(deps.database, after_id=page.last_id, page_size=page.size)
    return ListTenantsResponse(
        tenants=map(render_tenant, listed.tenants),
        next_page_token=render_next_page(listed.next_after_id, request, caller),
    )
