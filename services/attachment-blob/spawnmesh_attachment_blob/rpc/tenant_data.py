"""The data that this service keeps of tenants, for TenantParticipantService."""

from dataclasses import dataclass

from spawnmesh.tenancy.v1.participant_settings_pb2 import ParticipantSettings
from spawnmesh.tenancy.v1.tenant_status_pb2 import StorageUsage
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.tenant_participant import TenantData

from spawnmesh_attachment_blob.operations.tenant_bucket import TenantBucket
from spawnmesh_attachment_blob.rpc.messages import parse_policy
from spawnmesh_attachment_blob.store import tenants, usage


@dataclass(frozen=True)
class AttachmentTenants(TenantData):
    """Buckets, the rows about their objects, and the limits of tenants."""

    objects: TenantBucket
    tables = tenants.TENANT_TABLES

    async def put_settings(
        self, connection: Connection, tenant_id: str, settings_version: int, settings: ParticipantSettings
    ) -> None:
        policy = parse_policy(settings.attachments)
        await tenants.put_tenant(connection, tenant_id, settings_version, policy)

    async def get_storage(self, connection: Connection, tenant_id: str) -> StorageUsage | None:
        in_use = await usage.get_usage(connection, tenant_id)
        if in_use is None:
            return None
        return StorageUsage(
            stored_bytes=in_use.stored_bytes,
            uploading_bytes=in_use.uploading_bytes,
            max_stored_bytes=in_use.max_stored_bytes,
        )
