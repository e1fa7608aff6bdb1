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

    That of a model includes the cooldowns of its credentials at this model. Without a tenant, the
    cooldowns of each tenant are included. Raises MeshError NOT_FOUND for a target that is not
    configured.
    """
    targets = _parse_targets(deps.chain, request.scope, request.target.strip())
    if not targets:
        raise not_found("model, credential or provider", request.target.strip())
    cleared = [await deps.cooldowns.clear(target.of_tenant(request.tenant_id)) for target in targets]
    return pb.ClearCooldownResponse(was_cooling=any(cleared))


def _parse_targets(
    chain: ChainDependencies, scope: routing_pb2.CooldownScope.ValueType, name: str
) -> list[CooldownTarget]:
    """Return the targets; none if it is not configured.

    A credential is named `provider/<number>`, or `provider/<number>/<model>` at one model.
    """
    match scope:
        case routing_pb2.COOLDOWN_SCOPE_MODEL:
            model = chain.config.resolve_model(name)
            if model is None:
                return []
            readable = chain.availability.numbered_credentials(model.provider).values()
            of_credentials = (credential_target(model.provider, one, model.model) for one in readable)
            return [CooldownTarget(Scope.MODEL, str(model)), *of_credentials]
        case routing_pb2.COOLDOWN_SCOPE_CREDENTIAL:
            provider, _, rest = name.partition("/")
            number, _, model_name = rest.partition("/")
            if provider not in chain.config.providers or not number.isdecimal():
                return []
            fingerprint = chain.availability.numbered_credentials(provider).get(int(number))
            return [] if fingerprint is None else [credential_target(provider, fingerprint, model_name)]
        case _:
            return [CooldownTarget(Scope.PROVIDER, name)] if name in chain.config.providers else []
