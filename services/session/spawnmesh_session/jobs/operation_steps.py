"""The steps of this service's operations: a job takes them one by one until the work is done."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from spawnmesh.session.v1 import tenant_pb2
from spawnmesh.session.v1.tenant_service_pb2 import DeleteTenantResponse
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.long_running.operation import OperationType, Progress, Step, Work

from spawnmesh_session.domain.tenants import DeletionPosition, DeletionStep, TenantDeletion
from spawnmesh_session.operations.operation_types import DELETE_TENANT
from spawnmesh_session.operations.tenant_purge import TenantPurge
from spawnmesh_session.store import tenant_deletions

_PAUSE = timedelta(seconds=5)  # Work in progress settles, or another operation does the work.


@dataclass(frozen=True, slots=True)
class TenantSteps:
    """A step does some parts of the deletion of a tenant.

    Several operations can have one deletion. The first of them does the work, and the others
    follow it.
    """

    database: Database
    tenant_purge: TenantPurge
    render_deletion: Callable[[TenantDeletion], tenant_pb2.TenantDeletion]

    def by_method(self) -> Mapping[str, tuple[OperationType, Step]]:
        """Return the steps by the RPC that starts the operation."""
        return {DELETE_TENANT.method: (DELETE_TENANT, self.delete_tenant)}

    async def delete_tenant(self, work: Work) -> Progress:
        """Continue the deletion. Raises the error of a service that does not answer."""
        position = DeletionPosition.parse(work.position)
        did_work = position.executes and await self.tenant_purge.purge(work.tenant_id)
        async with self.database.transaction(work.tenant_id) as connection:
            deletion = await tenant_deletions.get_tenant_deletion(connection, work.tenant_id)
        response = DeleteTenantResponse()
        response.CopyFrom(cast(DeleteTenantResponse, work.response))
        response.tenant.tenant_id = work.tenant_id
        is_known = deletion is not None and deletion.request_time == position.request_time
        if deletion is not None and is_known:
            response.tenant.deletion.CopyFrom(self.render_deletion(deletion))
        # A deletion that is not known any more is done: the tenant was created again.
        is_done = deletion is None or not is_known or deletion.step == DeletionStep.DONE
        response.tenant.state = (
            tenant_pb2.TENANT_STATE_DELETED if is_done else tenant_pb2.TENANT_STATE_DELETING
        )
        return Progress(
            response,
            work.position,
            _done_count(response.tenant.deletion),
            is_done=is_done,
            pause=timedelta(0) if did_work or is_done else _PAUSE,
        )


def _done_count(deletion: tenant_pb2.TenantDeletion) -> int:
    return (
        deletion.killed_run_count
        + deletion.deleted_session_count
        + deletion.deleted_transcript_count
        + deletion.deleted_object_count
    )
