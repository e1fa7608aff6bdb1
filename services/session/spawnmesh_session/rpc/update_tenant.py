"""UpdateTenant. Changes the name and the settings that `update_mask` names, and nothing else."""

from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from spawnmesh.session.v1.tenant_pb2 import Tenant as TenantProto
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh.session.v1.tenant_service_pb2 import UpdateTenantRequest, UpdateTenantResponse
from spawnmesh_core.errors import MeshError, invalid
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.tenants import require_ready
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_text, render_tenant
from spawnmesh_session.rpc.tenant_settings import check_call_limits, parse_settings
from spawnmesh_session.store import tenants

_CHANGEABLE = ("display_name", "settings")
_OWN_PACKAGE = "spawnmesh."


async def update_tenant(
    request: UpdateTenantRequest, caller: Caller, deps: Dependencies
) -> UpdateTenantResponse:
    """Change the masked fields, push the settings, and name the services that are stale.

    Raise CONFLICT if the request names a version, the tenant has another and a value would change.
    """
    tenant_id, change = request.tenant_id, parse_change(request)
    async with deps.database.pipelined(tenant_id) as connection:
        require_ready(tenant_id, await tenants.enter_tenant(connection, tenant_id))
        locked = await tenants.lock_tenant(connection, tenant_id)
        current = (locked.display_name, locked.settings)
        wanted = change.apply_to(*current)
        if wanted != current:
            version = locked.settings_version
            if request.settings_version not in (0, version):
                raise MeshError(
                    Reason.CONFLICT,
                    f"tenant {tenant_id} has settings version {version}, and the change was made from "
                    f"{request.settings_version}; look at it again",
                    facts={"tenant_id": tenant_id, "settings_version": version},
                )
            are_limits_new = wanted[1].get("call_limits") != locked.settings.get("call_limits")
            if are_limits_new:
                check_call_limits(wanted[1], deps.call_limits.ceiling)
            await tenants.update_tenant(connection, tenant_id, *wanted)
            if are_limits_new:
                await tenants.notify_of_call_limits(connection)
        tenant = await tenants.get_existing_tenant(connection, tenant_id)
        push_id = await deps.settings_push.begin(connection, tenant_id)
    stale = sorted(await deps.settings_push.push(tenant, push_id))
    return UpdateTenantResponse(tenant=render_tenant(tenant), stale_services=stale)


@dataclass(frozen=True, slots=True)
class TenantChange:
    """Some fields of a tenant and their new values."""

    paths: tuple[tuple[str, ...], ...]
    values: UpdateTenantRequest

    def apply_to(self, display_name: str, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the name and the stored settings with the change."""
        tenant = TenantProto(display_name=display_name)
        ParseDict(settings, tenant.settings)
        for path in self.paths:
            _copy(path, self.values, tenant)
        return tenant.display_name, parse_settings(tenant.settings)


def parse_change(request: UpdateTenantRequest) -> TenantChange:
    """Return the change. Raise INVALID_REQUEST for a mask that is empty or names a fixed field."""
    paths = tuple(tuple(path.split(".")) for path in request.update_mask.paths)
    if not paths:
        raise invalid("update_mask", "names nothing to change")
    for index, path in enumerate(paths):
        if path[0] not in _CHANGEABLE or not _exists(path, TenantProto.DESCRIPTOR):
            raise invalid(
                f"update_mask.paths[{index}]", "is neither `display_name` nor `settings` nor a field below it"
            )
    parse_text("display_name", request.display_name)
    return TenantChange(paths, request)


def _exists(path: tuple[str, ...], message: Descriptor | None) -> bool:
    """Return whether the path leads to a field through Spawnmesh's own messages.

    A part of a duration, for example, cannot be changed alone.
    """
    for name in path:
        if (
            message is None
            or not message.full_name.startswith(_OWN_PACKAGE)
            or name not in message.fields_by_name
        ):
            return False
        message = message.fields_by_name[name].message_type
    return True


def _copy(path: tuple[str, ...], source: Message, target: Message) -> None:
    """Copy the field from `source`, or its default if its message is absent there.

    The other fields of its message stay, or get their defaults if the message is absent in
    `target`.
    """
    *parents, leaf = path
    default: Message = _DEFAULTS
    for name in parents:
        default = getattr(default, name)
        source = getattr(source, name) if source.HasField(name) else default
        if not target.HasField(name):
            getattr(target, name).CopyFrom(default)
        target = getattr(target, name)
    if source.DESCRIPTOR.fields_by_name[leaf].type != FieldDescriptor.TYPE_MESSAGE:
        setattr(target, leaf, getattr(source, leaf))
        return
    target.ClearField(leaf)
    if source.HasField(leaf):
        getattr(target, leaf).CopyFrom(getattr(source, leaf))


def _default_tenant() -> TenantProto:
    """Return the tenant that CreateTenant creates from an empty request."""
    tenant = TenantProto()
    ParseDict(parse_settings(TenantSettings()), tenant.settings)
    return tenant


_DEFAULTS = _default_tenant()
