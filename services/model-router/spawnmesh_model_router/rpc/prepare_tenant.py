"""PrepareTenant: store the routing policy of a tenant."""

from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1 import routing_pb2
from spawnmesh_postgres.tenant_purges import end_earlier_purge
from spawnmesh_runtime.caller import Caller

from spawnmesh_model_router.domain.images import BlindModelPolicy
from spawnmesh_model_router.domain.policy import Limits, TenantPolicy
from spawnmesh_model_router.rpc.dependencies import Dependencies
from spawnmesh_model_router.store.policies import set_policy


async def prepare_tenant(
    request: pb.PrepareTenantRequest, caller: Caller, deps: Dependencies
) -> pb.PrepareTenantResponse:
    """Store the policy if its version is newer, and return the version that holds.

    The policy applies here on return, and in other replicas within moments. Raises CONFLICT
    while the tenant is being purged, and for settings of a tenant that was purged.
    """
    tenant_id, version = caller.tenant_id, request.settings_version
    policy = _parse_policy(request.policy)
    async with deps.database.transaction(tenant_id) as connection:
        await end_earlier_purge(connection, tenant_id, version)
        version = await set_policy(connection, tenant_id, version, policy)
    deps.policies.invalidate()
    if version == request.settings_version:
        deps.policies.learn(tenant_id, policy)
    return pb.PrepareTenantResponse(settings_version=version)


def _parse_policy(policy: routing_pb2.RoutingPolicy) -> TenantPolicy:
    name = routing_pb2.BlindModelPolicy.Name(policy.blind_model_policy).removeprefix("BLIND_MODEL_POLICY_")
    return TenantPolicy(
        blind_model_policy=BlindModelPolicy(name) if name in BlindModelPolicy.__members__ else None,
        stop_after_side_effects=policy.stop_after_side_effects,
        max_tries=policy.max_try_count,
        limits=Limits(
            policy.max_requests_per_minute, policy.max_tokens_per_minute, policy.max_spend_micros_per_day
        ),
    )
