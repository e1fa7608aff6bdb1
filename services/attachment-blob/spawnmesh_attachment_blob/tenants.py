"""Makes tenants ready."""

from spawnmesh_postgres.database import Database

from spawnmesh_attachment_blob import store
from spawnmesh_attachment_blob.domain import AttachmentLimits
from spawnmesh_attachment_blob.errors import unknown_tenant
from spawnmesh_attachment_blob.objects import ObjectStore


class Tenants:
    """The tenants' buckets and this service's copy of their limits."""

    def __init__(self, database: Database, objects: ObjectStore) -> None:
        self._database = database
        self._objects = objects

    async def prepare(self, tenant_id: str, settings_version: int, limits: AttachmentLimits) -> int:
        """The bucket exists and limits of this version or a newer one hold; the version that does. Raises S3Failed."""
        await self._objects.make_bucket(tenant_id)
        async with self._database.transaction(tenant_id) as connection:
            await store.put_tenant(connection, tenant_id, settings_version, limits)
            tenant = await store.get_tenant(connection, tenant_id)
        if tenant is None:
            raise unknown_tenant()
        return tenant.settings_version
