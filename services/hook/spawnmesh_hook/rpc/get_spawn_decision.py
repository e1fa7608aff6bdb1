"""GetSpawnDecision: say whether a plugin allowed a spawn, and has to hear how it ends."""

from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.store import allowed_spawns


async def get_spawn_decision(
    request: pb.GetSpawnDecisionRequest, caller: Caller, deps: Dependencies
) -> pb.GetSpawnDecisionResponse:
    """Return whether a plugin has allowed the session, by the dispatch or by the delivery log."""
    async with deps.database.transaction(caller.tenant_id) as connection:
        allowed = await allowed_spawns.has_allow(connection, caller.tenant_id, request.session_id)
    return pb.GetSpawnDecisionResponse(allowed=allowed)
