"""HeartbeatRun. Extends the lease from now, by the database clock, and returns a new run token."""

from spawnmesh.session.v1.run_service_pb2 import HeartbeatRunRequest, HeartbeatRunResponse, Interrupt
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_runtime.caller import Caller
from spawnmesh_runtime.tokens import HarnessClaim

from spawnmesh_session.domain.runs import CallingRun, lease_lost
from spawnmesh_session.operations.callers import require_epoch
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.store import run_queue, runs


async def heartbeat_run(
    request: HeartbeatRunRequest, caller: Caller, deps: Dependencies
) -> HeartbeatRunResponse:
    """Extend the lease from now, by the database's clock, and mint a new run token."""
    require_epoch(caller, request.epoch)
    tenant_id, run_id = caller.tenant_id, caller.run_id
    calling = CallingRun(caller.session_id, run_id, request.epoch)
    lease = await run_queue.extend_lease(deps.database, tenant_id, calling, deps.lease_ttl)
    if lease is None:
        async with deps.database.transaction(tenant_id) as connection:
            run = await runs.get_run(connection, tenant_id, run_id)
        raise lease_lost(run, request.epoch)
    token = deps.run_tokens.mint(
        tenant_id,
        caller.session_id,
        run_id,
        request.epoch,
        lease.time_left,
        harness=HarnessClaim(caller.harness_token_id, caller.traceparent) if caller.is_harness else None,
        has_budget=caller.has_budget,
        agent_id=caller.agent_id,
    )
    return HeartbeatRunResponse(
        lease_expire_time=timestamp_of(lease.end_time),
        pending_message_count=lease.unread_count,
        run_token=token,
        interrupt=Interrupt.Value(f"INTERRUPT_{lease.interrupt or 'UNSPECIFIED'}"),
    )
