"""ListProviderHealth: list the providers with their credentials and cooldowns."""

from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1 import routing_pb2
from spawnmesh_runtime.caller import Caller

from spawnmesh_model_router.domain.cooldown import Cooldown, CooldownTarget, Scope
from spawnmesh_model_router.rpc.dependencies import Dependencies
from spawnmesh_model_router.rpc.messages import render_reason


async def list_provider_health(
    _request: pb.ListProviderHealthRequest, _caller: Caller, deps: Dependencies
) -> pb.ListProviderHealthResponse:
    """Return every configured provider, by name, with its active and expired cooldowns."""
    cooldowns = deps.cooldowns.all()
    providers = sorted(deps.chain.config.providers)
    return pb.ListProviderHealthResponse(
        providers=[_render_health(deps, provider, cooldowns) for provider in providers]
    )


def _render_health(
    deps: Dependencies, provider: str, cooldowns: dict[CooldownTarget, Cooldown]
) -> routing_pb2.ProviderHealth:
    readable = deps.chain.availability.numbered_credentials(provider)
    numbers = {fingerprint: number for number, fingerprint in readable.items()}
    return routing_pb2.ProviderHealth(
        provider=provider,
        credential_count=len(deps.chain.config.providers[provider].credentials),
        readable_credential_count=len(numbers),
        cooldowns=[
            _render_cooldown(target, cooldown, numbers)
            for target, cooldown in sorted(cooldowns.items(), key=lambda item: (item[0].scope, item[0].name))
            if target.provider == provider
        ],
    )


def _render_cooldown(
    target: CooldownTarget, cooldown: Cooldown, numbers: dict[str, int]
) -> routing_pb2.Cooldown:
    """Render the cooldown.

    A credential appears by its number: not even a digest of a key is sent.
    """
    name = target.name
    if target.scope is Scope.CREDENTIAL:
        provider, fingerprint, *model = name.split("/", 2)
        name = "/".join((provider, str(numbers.get(fingerprint, 0)), *model))
    rendered = routing_pb2.Cooldown(
        scope=routing_pb2.CooldownScope.Value(f"COOLDOWN_SCOPE_{target.scope.value}"),
        target=name,
        reason=render_reason(cooldown.reason),
        failure_count=cooldown.failures,
    )
    rendered.until_time.FromDatetime(cooldown.until)
    return rendered
