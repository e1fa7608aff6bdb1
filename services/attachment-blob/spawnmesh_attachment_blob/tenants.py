"""Makes tenants ready."""

from spawnmesh_postgres.database import Database

from spawnmesh_attachment_blob import store
from spawnmesh_attachment_blob.domain.limits import TenantPolicy
from spawnmesh_attachment_blob.errors import being_purged
from spawnmesh_attachment_blob.s3_calls import S3Calls
from spawnmesh_attachment_blob.tenant_buckets import TenantBuckets


class Tenants:
    """The tenants' buckets and this service's copy of their policies."""

    def __init__(self, database: Database, buckets: TenantBuckets, calls: S3Calls) -> None:
        self._database = database
        self._buckets = buckets
        self._calls = calls

    async def prepare(self, tenant_id: str, settings_version: int, policy: TenantPolicy) -> int:
        """The bucket exists and a policy of this version or a newer one holds; the version that does.

        Raises S3Failed, and CONFLICT while the tenant is being removed. A purge of the tenant before the one with this version is over: the
        tenant is created anew once nothing is left of that one.
        """
        async with self._database.transaction(tenant_id) as connection:
            found = await store.get_tenant(connection, tenant_id)
        if found is not None and found.purging and not 0 < found.purged_version < settings_version:
            raise being_purged()
        await self._calls.run(self._buckets.make_bucket, tenant_id)
        async with self._database.transaction(tenant_id) as connection:
            await store.bar_tenant(connection, tenant_id)
            await store.put_tenant(connection, tenant_id, settings_version, policy)
            tenant = await store.get_tenant(connection, tenant_id)
            if tenant is None or tenant.purging:
                # The purge began meanwhile, and may have been through with the bucket before it was made again.
                await self._calls.run(self._buckets.remove_bucket, tenant_id)
                raise being_purged()
        if found is None or found.purging:
            # A purge that came late may have removed the bucket; now it removes nothing any more.
            await self._calls.run(self._buckets.make_bucket, tenant_id)
        return tenant.settings_version
