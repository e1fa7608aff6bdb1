"""Parses the settings of a tenant, as CreateTenant and UpdateTenant store them."""

from typing import Any

from google.protobuf.json_format import MessageToDict
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import AttachmentLimits
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_core.errors import invalid

from spawnmesh_session.domain.call_limits_ceiling import CallLimitsCeiling

_DEFAULT_ATTACHMENTS = AttachmentLimits(
    enabled=True, max_file_count=50, max_file_bytes=1024 * 1024, max_total_bytes=5 * 1024 * 1024
)


def parse_settings(settings: TenantSettings) -> dict[str, Any]:
    """Return the settings as stored: every attachment limit, other fields only if set."""
    stored: dict[str, Any] = MessageToDict(settings, preserving_proto_field_name=True)
    limits = settings.attachments if settings.HasField("attachments") else _DEFAULT_ATTACHMENTS
    stored["attachments"] = {
        **MessageToDict(limits, preserving_proto_field_name=True),
        "enabled": limits.enabled,
        "max_file_count": limits.max_file_count,
        "max_file_bytes": limits.max_file_bytes,
        "max_total_bytes": limits.max_total_bytes,
    }
    return stored


def check_call_limits(settings: dict[str, Any], ceiling: CallLimitsCeiling) -> None:
    """Raise INVALID_REQUEST with the field and its ceiling if a call limit is above it."""
    excess = ceiling.excess(settings.get("call_limits", {}))
    if excess is not None:
        field, largest = excess
        raise invalid(
            f"settings.call_limits.{field}", f"must be at most {largest}, the ceiling of the operator"
        )
