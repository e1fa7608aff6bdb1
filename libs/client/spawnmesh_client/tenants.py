"""The tenants of a mesh, for its operators."""

from collections.abc import Sequence

from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh.session.v1.tenant_service_pb2 import ServiceTenantStatus

from spawnmesh_client.resource_views import Tenant
from spawnmesh_client.view_of import view_of
from spawnmesh_client.wire import WireMesh


class Tenants:
    """`mesh.tenants`. The settings of a tenant are messages of the contract."""

    def __init__(self, wire: WireMesh) -> None:
        self._wire = wire

    async def create(
        self, tenant_id: str, *, display_name: str = "", settings: TenantSettings | None = None
    ) -> Tenant:
        """Create the tenant if it does not exist."""
        tenant = await self._wire.create_tenant(tenant_id, display_name=display_name, settings=settings)
        return view_of(Tenant, tenant)

    async def update(
        self,
        tenant_id: str,
        paths: Sequence[str],
        *,
        display_name: str = "",
        settings: TenantSettings | None = None,
        etag: str = "",
    ) -> Tenant:
        """Change the fields in `paths`, such as `settings.max_spawn_depth`.

        With an etag, raise Conflict ETAG_DIFFERS if the tenant has changed since.
        """
        tenant, _ = await self._wire.update_tenant(
            tenant_id,
            paths,
            display_name=display_name,
            settings=settings,
            etag=etag,
        )
        return view_of(Tenant, tenant)

    async def get(self, tenant_id: str) -> Tenant:
        """Return one tenant, or the progress of its deletion."""
        return view_of(Tenant, await self._wire.tenant(tenant_id))

    async def settings(self, tenant_id: str) -> TenantSettings:
        """Return the settings of one tenant."""
        return (await self._wire.tenant(tenant_id)).settings

    async def list(self) -> Sequence[Tenant]:
        """Return every tenant, by id."""
        return [view_of(Tenant, tenant) for tenant in await self._wire.tenants()]

    async def status(self, tenant_id: str) -> Sequence[ServiceTenantStatus]:
        """Return what each service knows and stores of the tenant."""
        return await self._wire.tenant_status(tenant_id)

    async def delete(self, tenant_id: str) -> Tenant:
        """Begin to delete the tenant with all its data; `get` returns the progress."""
        return view_of(Tenant, await self._wire.delete_tenant(tenant_id))
