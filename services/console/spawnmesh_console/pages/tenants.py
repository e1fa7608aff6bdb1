"""`/tenants` and `/tenants/{tenant_id}`: the tenants of the mesh, for its operators, to read."""

from typing import Any
from urllib.parse import quote, urlencode

from spawnmesh_core.errors import InvalidRequest, MeshError, NotFound
from starlette.responses import Response

from spawnmesh_console.clients.tenants import (
    TenantPage,
    deletion_operation,
    tenant_in_services,
    tenant_page,
    tenant_with_settings,
)
from spawnmesh_console.domain.tenant_settings import call_limit_rows, setting_groups
from spawnmesh_console.domain.tenants import changes_soon, newest_version
from spawnmesh_console.web.visit import Visit, see_other

_MISSING = "It was never created. Look for it in the list, which has every tenant that is not deleted."


async def list_tenants(visit: Visit) -> Response:
    """Show a page of the tenants. `part=rows` returns it alone, to keep it up to date.

    `tenant_id` leads to that tenant, which may be deleted.
    """
    if visit.text("tenant_id"):
        return see_other(f"/tenants/{quote(visit.text('tenant_id'), safe='')}")
    token = visit.text("page_token")
    problem, page = "", TenantPage([], "")
    try:
        page = await tenant_page(visit.mesh, page_token=token)
    except InvalidRequest as error:
        problem = error.message
    values: dict[str, Any] = {
        "page": page,
        "problem": problem,
        "is_first": not token,
        "next_query": urlencode({"page_token": page.next_page_token}),
        "rows_query": urlencode({"page_token": token, "part": "rows"} if token else {"part": "rows"}),
    }
    if visit.text("part") == "rows":
        return visit.render("tenants_rows.html", **values)
    return visit.render("tenants.html", status=400 if problem else 200, **values)


async def show_tenant(visit: Visit) -> Response:
    """Show one tenant. `part=status` returns its deletion and the services alone, to keep them up
    to date.
    """
    tenant_id = visit.path_part("tenant_id")
    try:
        found = await tenant_with_settings(visit.mesh, tenant_id)
        services = await tenant_in_services(visit.mesh, tenant_id)
        operation = await deletion_operation(visit.mesh, tenant_id) if found.tenant.deletion else None
    except (InvalidRequest, NotFound) as error:
        return _missing(visit, error)
    values: dict[str, Any] = {
        "tenant": found.tenant,
        "services": services,
        "operation": operation,
        "newest_version": newest_version(found.tenant, services),
        "is_live": changes_soon(found.tenant, services),
    }
    if visit.text("part") == "status":
        return visit.render("tenant_status.html", **values)
    return visit.render(
        "tenant.html",
        groups=setting_groups(found.settings),
        call_limits=call_limit_rows(found.settings),
        **values,
    )


def _missing(visit: Visit, error: MeshError) -> Response:
    """Return the page for an id that no tenant has, or can have."""
    return visit.render("refused.html", status=404, error=error, advice=_MISSING)
