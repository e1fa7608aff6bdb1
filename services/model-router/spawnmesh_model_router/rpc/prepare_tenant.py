"""PrepareTenant: store the routing policy of a tenant."""

from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1 import routing_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import Caller

from spawnmesh_model_router.domain.images import BlindModelPolicy
from spawnmesh_model_router.domain.policy import Limits, TenantPolicy
from spawnmesh_model_router.rpc.dependencies import Dependencies
from spawnmesh_model_router.store.policies import set_policy
from spawnmesh_model_router.store.tenants import PurgeState, end_earlier_purge

_PURGE_RETRY_SECONDS = 5.0


async def prepare_tenant(
    request: pb.PrepareTenantRequest, caller: Caller, deps: Dependencies
) -> pb.PrepareTenantResponse:
    """Store the policy if its version is newer, and return the version that holds.

    The policy applies here on return, and in other replicas within moments. Raises MeshError
    CONFLICT while the tenant is being purged, and for settings of a tenant that was purged.
    """
    tenant_id, version = caller.tenant_id, request.settings_version
    async with deps.database.transaction(tenant_id) as connection:
        match await end_earlier_purge(connection, tenant_id, version):
            case PurgeState.DONE:
                raise MeshError(
                    Reason.CONFLICT, "these settings are of a tenant that was purged; create the tenant anew"
                )
            case PurgeState.UNDER_WAY:
                raise MeshError(
                    Reason.CONFLICT,
                    "the tenant is being purged; call again once it is done",
                    retry_after_seconds=_PURGE_RETRY_SECONDS,
                )
        version = await set_policy(connection, tenant_id, version, _parse_policy(request.policy))
    deps.policies.invalidate()
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
