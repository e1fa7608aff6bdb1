"""Tenants: page by page, one of them with its settings, and what each service knows of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.operations.v1 import operation_service_pb2 as operations_rpc
from spawnmesh.operations.v1.operation_service_pb2_grpc import OperationServiceStub
from spawnmesh.session.v1 import tenant_pb2
from spawnmesh.session.v1 import tenant_service_pb2 as rpc
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh.tenancy.v1 import tenant_status_pb2
from spawnmesh_calls.wire_reasons import reason_of
from spawnmesh_client.client import Mesh
from spawnmesh_client.operations import operation_view
from spawnmesh_client.view_of import enum_prefix

from spawnmesh_console.domain.tenant_settings import SettingValue
from spawnmesh_console.domain.tenants import (
    DeletionOperation,
    DeletionProgress,
    ShownTenant,
    StoredKind,
    TenantInService,
    UsedStorage,
)


@dataclass(frozen=True, slots=True)
class TenantPage:
    """Tenants by id, and the token of the next page; empty on the last one."""

    tenants: list[ShownTenant]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class TenantWithSettings:
    """A tenant, and the fields of its settings by their paths."""

    tenant: ShownTenant
    settings: Mapping[str, SettingValue]


async def tenant_page(mesh: Mesh, *, page_token: str = "", page_size: int = 50) -> TenantPage:
    """Return a page of the tenants that are not deleted. It can be short."""
    peer = mesh.wire.service("session")
    request = rpc.ListTenantsRequest(page_token=page_token, page_size=page_size)
    answer = await peer.unary(TenantServiceStub(peer.channel).ListTenants, request)
    return TenantPage([_tenant(one) for one in answer.tenants], answer.next_page_token)


async def tenant_with_settings(mesh: Mesh, tenant_id: str) -> TenantWithSettings:
    """Return one tenant, also a deleted one. Raises NotFound."""
    tenant = await mesh.wire.tenant(tenant_id)
    return TenantWithSettings(_tenant(tenant), setting_values(tenant.settings))


async def tenant_in_services(mesh: Mesh, tenant_id: str) -> list[TenantInService]:
    """Return what each service knows of the tenant, session first."""
    return [in_service(one) for one in await mesh.wire.tenant_status(tenant_id)]


async def deletion_operation(mesh: Mesh, tenant_id: str) -> DeletionOperation | None:
    """Return the operation that deletes the tenant, the newest one if there are several.

    None if there is none any more: operations are kept for a week.
    """
    peer = mesh.wire.service("session")
    request = operations_rpc.ListOperationsRequest(name=f"services/session/tenants/{tenant_id}", page_size=1)
    answer = await peer.unary(OperationServiceStub(peer.channel).ListOperations, request)
    for one in answer.operations:
        view = operation_view(one, mesh.wire)
        return DeletionOperation(view.name, view.subject, view.done, view.retry_reason)
    return None


def setting_values(settings: Message) -> dict[str, SettingValue]:
    """Return each field of the settings, also those that are not set, by its path."""
    return _values(settings.DESCRIPTOR, settings, "")


def in_service(one: rpc.ServiceTenantStatus) -> TenantInService:
    """Return what a service knows of the tenant, or why that is not known."""
    if not one.HasField("status"):
        reason = reason_of(one.error_reason)
        return TenantInService(one.service, error_reason="" if reason is None else reason.value)
    status = one.status
    return TenantInService(
        one.service,
        _word(tenant_status_pb2.ParticipationState.DESCRIPTOR, status.state),
        "",
        status.settings_version,
        _time(status, "purge_begin_time"),
        _time(status, "purge_end_time"),
        tuple(StoredKind(items.kind, items.count, items.has_more) for items in status.stored_items),
        _storage(status.storage) if status.HasField("storage") else None,
    )


def _values(described: Any, message: Message | None, prefix: str) -> dict[str, SettingValue]:
    values: dict[str, SettingValue] = {}
    for field in described.fields:
        path = f"{prefix}{field.name}"
        kind = field.message_type
        if kind is None:
            values[path] = None if message is None else _scalar(field, getattr(message, field.name))
            continue
        below = getattr(message, field.name) if message is not None and message.HasField(field.name) else None
        if kind.full_name == Duration.DESCRIPTOR.full_name:
            values[path] = (
                None if below is None else timedelta(seconds=below.seconds, microseconds=below.nanos // 1000)
            )
        else:
            values |= _values(kind, below, f"{path}.")
    return values


def _scalar(field: FieldDescriptor, value: Any) -> SettingValue:
    """Return the value; of an enum its word, which is empty for the default."""
    if field.enum_type is None:
        plain: SettingValue = value
        return plain
    known = field.enum_type.values_by_number.get(value)
    if known is None:
        return str(value)
    return str(known.name).removeprefix(enum_prefix(field.enum_type)) if known.number else ""


def _tenant(one: tenant_pb2.Tenant) -> ShownTenant:
    return ShownTenant(
        one.tenant_id,
        one.display_name,
        _word(tenant_pb2.TenantState.DESCRIPTOR, one.state),
        one.settings_version,
        _time(one, "create_time"),
        _deletion(one.deletion) if one.HasField("deletion") else None,
    )


def _deletion(one: tenant_pb2.TenantDeletion) -> DeletionProgress:
    return DeletionProgress(
        one.request_time.ToDatetime(UTC),
        _time(one, "end_time"),
        one.killed_run_count,
        one.deleted_session_count,
        one.deleted_transcript_count,
        one.deleted_object_count,
        one.stalled_by,
    )


def _storage(one: tenant_status_pb2.StorageUsage) -> UsedStorage:
    return UsedStorage(one.stored_bytes, one.uploading_bytes, one.max_stored_bytes)


def _word(enum: Any, number: int) -> str:
    known = enum.values_by_number.get(number)
    return "" if known is None else known.name.removeprefix(enum_prefix(enum))


def _time(message: Message, name: str) -> datetime | None:
    time: Timestamp = getattr(message, name)
    return time.ToDatetime(UTC) if message.HasField(name) else None
