"""HeartbeatRun. Extends the lease from now, by the database clock, and returns a new run token."""

from spawnmesh.session.v1.run_service_pb2 import HeartbeatRunRequest, HeartbeatRunResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.runs import lease_lost, require_lease
from spawnmesh_session.operations.callers import require_epoch
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import render_time
from spawnmesh_session.store import inbox, run_queue, runs


async def heartbeat_run(
    request: HeartbeatRunRequest, caller: Caller, deps: Dependencies
) -> HeartbeatRunResponse:
    """Extend the lease from now, by the database's clock, and mint a new run token."""
    require_epoch(caller, request.epoch)
    tenant_id, run_id = caller.tenant_id, caller.run_id
    async with deps.database.pipelined(tenant_id) as connection:
        run = await runs.lock_run(connection, tenant_id, run_id)
        require_lease(run, request.epoch)
        lease_end = await run_queue.extend_lease(connection, tenant_id, run_id, deps.lease_ttl)
        if lease_end is None:
            raise lease_lost(run, request.epoch)
        unread_count = await inbox.count_inbox(connection, tenant_id, run.session_id)
    time_left = run.deadline_time - (lease_end - deps.lease_ttl)
    token = deps.run_tokens.mint(
        tenant_id,
        caller.session_id,
        run_id,
        request.epoch,
        time_left,
        harness_traceparent=caller.traceparent if caller.is_harness else None,
    )
    return HeartbeatRunResponse(
        lease_expire_time=render_time(lease_end), pending_message_count=unread_count, run_token=token
    )
