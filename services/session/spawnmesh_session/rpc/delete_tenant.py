"""DeleteTenant. Starts the operation that deletes a tenant, and returns when this is durable."""

from google.longrunning.operations_pb2 import Operation
from spawnmesh.session.v1.tenant_service_pb2 import DeleteTenantRequest
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.long_running.operation import NewOperation
from spawnmesh_runtime.caller import Caller
from spawnmesh_runtime.telemetry import current_traceparent

from spawnmesh_session.domain.tenants import DeletionPosition, Tenant
from spawnmesh_session.operations.operation_types import DELETE_TENANT
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.store import tenant_deletions, tenants


async def delete_tenant(request: DeleteTenantRequest, caller: Caller, deps: Dependencies) -> Operation:
    """Make the deletion and its operation durable; `jobs.operation_steps` executes it.

    From the commit on nothing begins in the tenant, and the purge finds what began before. Raises
    NOT_FOUND, REQUEST_ID_REUSED and OPERATION_COUNT_EXCEEDED.
    """
    tenant_id = request.tenant_id

    async def begin(connection: Connection) -> str:
        """Begin the deletion, unless it has begun or is done. Return the first position."""
        tenant = await tenants.get_tenant(connection, tenant_id)
        if tenant is None:
            raise not_found("tenant", tenant_id)
        begins = isinstance(tenant, Tenant) and await tenant_deletions.insert_tenant_deletion(
            connection, tenant_id
        )
        deletion = await tenant_deletions.get_tenant_deletion(connection, tenant_id)
        if deletion is None:
            raise not_found("tenant", tenant_id)
        return str(DeletionPosition(deletion.request_time, executes=begins))

    new = NewOperation(DELETE_TENANT, request.request_id, request, caller.subject, current_traceparent())
    async with deps.database.transaction(tenant_id) as connection:
        return await deps.operations.start_within(connection, tenant_id, new, begin)
