"""Settings of a tenant, as CreateTenant and UpdateTenant store them."""

from typing import Any

from google.protobuf.json_format import MessageToDict
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import AttachmentLimits
from spawnmesh.session.v1.tenant_pb2 import TenantSettings

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
