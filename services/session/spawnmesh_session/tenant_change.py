"""What an UpdateTenant changes, and what a tenant's settings are with it."""

from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from spawnmesh.session.v1.tenant_pb2 import Tenant, TenantSettings
from spawnmesh.session.v1.tenant_service_pb2 import UpdateTenantRequest
from spawnmesh_core.errors import invalid

from spawnmesh_session.parse import no_nul, parse_settings

_CHANGEABLE = ("display_name", "settings")
_OURS = "spawnmesh."


@dataclass(frozen=True, slots=True)
class TenantChange:
    """Some fields of a tenant and what they are to be."""

    paths: tuple[tuple[str, ...], ...]
    values: UpdateTenantRequest

    def applied_to(self, display_name: str, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Name and stored settings with the change."""
        tenant = Tenant(display_name=display_name)
        ParseDict(settings, tenant.settings)
        for path in self.paths:
            _copy(path, self.values, tenant)
        return tenant.display_name, parse_settings(tenant.settings)


def parse_change(request: UpdateTenantRequest) -> TenantChange:
    """The change; INVALID_REQUEST for a mask that names nothing, or what cannot be changed."""
    paths = tuple(tuple(path.split(".")) for path in request.update_mask.paths)
    if not paths:
        raise invalid("update_mask", "names nothing to change")
    for index, path in enumerate(paths):
        if path[0] not in _CHANGEABLE or not _exists(path, Tenant.DESCRIPTOR):
            raise invalid(
                f"update_mask.paths[{index}]", "is neither `display_name` nor `settings` nor a field below it"
            )
    no_nul("display_name", request.display_name)
    return TenantChange(paths, request)


def _exists(path: tuple[str, ...], message: Descriptor | None) -> bool:
    """Whether the path leads to a field, through messages of ours alone: a part of a duration is nothing to change."""
    for name in path:
        if message is None or not message.full_name.startswith(_OURS) or name not in message.fields_by_name:
            return False
        message = message.fields_by_name[name].message_type
    return True


def _copy(path: tuple[str, ...], source: Message, target: Message) -> None:
    """Gives the field its value in `source`, or its default where the message that it is in is absent there.

    Fields beside it stay, or get their defaults where the message is absent in `target`.
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


def _tenant_by_default() -> Tenant:
    """As CreateTenant makes it."""
    tenant = Tenant()
    ParseDict(parse_settings(TenantSettings()), tenant.settings)
    return tenant


_DEFAULTS = _tenant_by_default()
