"""ClearCooldown: end the cooldown of a model, a credential or a provider."""

from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1 import routing_pb2
from spawnmesh_core.errors import not_found
from spawnmesh_runtime.caller import Caller

from spawnmesh_model_router.domain.cooldown import CooldownTarget, Scope
from spawnmesh_model_router.operations.failover.availability import credential_target
from spawnmesh_model_router.operations.failover.dependencies import ChainDependencies
from spawnmesh_model_router.rpc.dependencies import Dependencies


async def clear_cooldown(
    request: pb.ClearCooldownRequest, _caller: Caller, deps: Dependencies
) -> pb.ClearCooldownResponse:
    """Delete the cooldown, durably.

    Raises MeshError NOT_FOUND for a target that is not configured.
    """
    target = _parse_target(deps.chain, request.scope, request.target.strip())
    if target is None:
        raise not_found("model, credential or provider", request.target.strip())
    return pb.ClearCooldownResponse(was_cooling=await deps.cooldowns.clear(target))


def _parse_target(
    chain: ChainDependencies, scope: routing_pb2.CooldownScope.ValueType, name: str
) -> CooldownTarget | None:
    """Return the target; None if it is not configured.

    A credential is named `provider/<number>`.
    """
    match scope:
        case routing_pb2.COOLDOWN_SCOPE_MODEL:
            model = chain.config.resolve_model(name)
            return CooldownTarget(Scope.MODEL, str(model)) if model is not None else None
        case routing_pb2.COOLDOWN_SCOPE_CREDENTIAL:
            provider, _, number = name.partition("/")
            if provider not in chain.config.providers or not number.isdecimal():
                return None
            fingerprint = chain.availability.numbered_credentials(provider).get(int(number))
            return credential_target(provider, fingerprint) if fingerprint is not None else None
        case _:
            return CooldownTarget(Scope.PROVIDER, name) if name in chain.config.providers else None
