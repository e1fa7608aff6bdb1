"""The data that this service keeps of tenants, for TenantParticipantService."""

from dataclasses import dataclass

from spawnmesh.tenancy.v1.participant_settings_pb2 import ParticipantSettings
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.tenant_participant import TenantData

from spawnmesh_attachment_blob.operations.tenant_bucket import TenantBucket
from spawnmesh_attachment_blob.rpc.messages import parse_policy
from spawnmesh_attachment_blob.store import tenants


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
