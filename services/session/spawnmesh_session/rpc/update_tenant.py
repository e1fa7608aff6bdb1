"""UpdateTenant. Changes the fields that `update_mask` names, and nothing else."""

from typing import Any

from google.protobuf.json_format import ParseDict
from spawnmesh.session.v1.tenant_pb2 import Tenant as TenantProto
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh.session.v1.tenant_service_pb2 import UpdateTenantRequest, UpdateTenantResponse
from spawnmesh_calls.field_masks import apply_changes, changed_paths
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.tenant_classes import check_tenant_class
from spawnmesh_session.domain.tenants import check_etag, require_ready
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_text, render_tenant
from spawnmesh_session.rpc.tenant_messages import check_call_limits, parse_settings
from spawnmesh_session.store import tenants

_FIXED = frozenset(TenantProto.DESCRIPTOR.fields_by_name) - {"display_name", "settings"}


async def update_tenant(
    request: UpdateTenantRequest, caller: Caller, deps: Dependencies
) -> UpdateTenantResponse:
    """Change the masked fields, push the settings, and name the services that are stale.

    Raise ETAG_DIFFERS if the request has an etag, the tenant has another and a value would change.
    """
    tenant_id = request.tenant.tenant_id
    parse_text("tenant.display_name", request.tenant.display_name)
    paths = changed_paths(request.update_mask, request.tenant, _FIXED)
    async with deps.database.pipelined(tenant_id) as connection:
        require_ready(tenant_id, await tenants.enter_tenant(connection, tenant_id))
        current = await tenants.lock_tenant(connection, tenant_id)
        display_name, settings = change_settings(
            request.tenant, paths, current.display_name, current.settings
        )
        if (display_name, settings) != (current.display_name, current.settings):
            check_etag(request.tenant.etag, current)
            are_limits_new = settings.get("call_limits") != current.settings.get("call_limits")
            if are_limits_new:
                check_call_limits(settings, deps.call_limits.ceiling)
            tenant_class = settings.get("tenant_class", "")
            if tenant_class != current.settings.get("tenant_class", ""):
                check_tenant_class(tenant_class, deps.tenant_classes)
            if not await tenants.update_tenant(connection, current, display_name, settings):
                raise RuntimeError("a tenant that is locked was changed")
            if are_limits_new:
                await tenants.notify_of_call_limits(connection)
        tenant = await tenants.get_existing_tenant(connection, tenant_id)
        push_id = await deps.settings_push.begin(connection, tenant_id)
    stale = sorted(await deps.settings_push.push(tenant, push_id))
    return UpdateTenantResponse(tenant=render_tenant(tenant), stale_services=stale)


def change_settings(
    values: TenantProto, paths: tuple[tuple[str, ...], ...], display_name: str, settings: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the name and the stored settings with the values of the paths."""
    tenant = TenantProto(display_name=display_name)
    ParseDict(settings, tenant.settings)
    apply_changes(paths, values, tenant, _DEFAULTS)
    return tenant.display_name, parse_settings(tenant.settings)


def _default_tenant() -> TenantProto:
    """Return the tenant that CreateTenant creates from an empty request."""
    tenant = TenantProto()
    ParseDict(parse_settings(TenantSettings()), tenant.settings)
    return tenant


_DEFAULTS = _default_tenant()
