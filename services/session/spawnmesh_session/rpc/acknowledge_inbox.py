"""AcknowledgeInbox. Marks messages of the inbox as read; a job deletes them later."""

from spawnmesh.session.v1.run_service_pb2 import AcknowledgeInboxRequest, AcknowledgeInboxResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.runs import require_lease
from spawnmesh_session.operations.callers import require_epoch
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.store import inbox, runs


async def acknowledge_inbox(
    request: AcknowledgeInboxRequest, caller: Caller, deps: Dependencies
) -> AcknowledgeInboxResponse:
    """Acknowledge messages for the runner that holds the run."""
    require_epoch(caller, request.epoch)
    async with deps.database.transaction(caller.tenant_id) as connection:
        run = await runs.lock_run(connection, caller.tenant_id, caller.run_id)
        require_lease(run, request.epoch)
        await inbox.acknowledge_inbox(connection, caller.tenant_id, run.session_id, list(request.keys))
    return AcknowledgeInboxResponse()
