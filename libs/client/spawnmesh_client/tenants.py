"""The tenants of a mesh, for its operators."""

import uuid
from collections.abc import Sequence

from spawnmesh.session.v1.tenant_pb2 import Tenant as TenantMessage
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh.session.v1.tenant_service_pb2 import (
    DeleteTenantRequest,
    DeleteTenantResponse,
    ServiceTenantStatus,
)
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub

from spawnmesh_client.operations import (
    OnOperation,
    Operation,
    ignore_progress,
    operation_view,
    run_operation,
)
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

    async def delete(self, tenant_id: str, *, request_id: str = "") -> Operation:
        """Start the operation that deletes the tenant with all its data.

        Its `result` waits until nothing is left. It cannot be cancelled. With the `request_id` of
        an earlier call, return the operation of that call. Raises NotFound.
        """
        request = _deletion(tenant_id, request_id)
        return operation_view(await self._wire.delete_tenant(request), self._wire)


async def delete_tenant(
    wire: WireMesh,
    tenant_id: str,
    *,
    timeout_seconds: float | None = None,
    on_progress: OnOperation = ignore_progress,
) -> TenantMessage:
    """Delete the tenant with all its data by an operation, wait for it, and return the report.

    It goes on after restarts of the service, and after this call was interrupted. Raises MeshError:
    NOT_FOUND, and DEADLINE_EXCEEDED after the timeout.
    """
    peer = wire.service("session")
    stub = TenantServiceStub(peer.channel)
    operation = await run_operation(
        peer,
        stub.DeleteTenant,
        _deletion(tenant_id),
        on_progress,
        timeout_seconds=timeout_seconds,
    )
    deleted = DeleteTenantResponse()
    operation.response.Unpack(deleted)
    return deleted.tenant


def _deletion(tenant_id: str, request_id: str = "") -> DeleteTenantRequest:
    return DeleteTenantRequest(tenant_id=tenant_id, request_id=request_id or uuid.uuid4().hex)
