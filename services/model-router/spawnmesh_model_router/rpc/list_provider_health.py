"""ListProviderHealth: list the providers with their credentials and cooldowns."""

from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1 import routing_pb2
from spawnmesh_runtime.caller import Caller, CallerKind

from spawnmesh_model_router.domain.cooldown import Cooldown, CooldownTarget, Scope
from spawnmesh_model_router.rpc.dependencies import Dependencies
from spawnmesh_model_router.rpc.messages import render_audience, render_reason

_MAX_COOLDOWNS = 1000  # Of a provider. Each tenant can have its own.


async def list_provider_health(
    _request: pb.ListProviderHealthRequest, caller: Caller, deps: Dependencies
) -> pb.ListProviderHealthResponse:
    """Return every configured provider, by name, with its active and expired cooldowns.

    A client sees those of all tenants and of its own.
    """
    is_operator = caller.kind is CallerKind.ADMIN
    cooldowns: dict[str, dict[CooldownTarget, Cooldown]] = {name: {} for name in deps.chain.config.providers}
    for target, cooldown in deps.cooldowns.all().items():
        if target.provider in cooldowns and (is_operator or target.tenant_id in ("", caller.tenant_id)):
            cooldowns[target.provider][target] = cooldown
    return pb.ListProviderHealthResponse(
        providers=[_render_health(deps, *provider) for provider in sorted(cooldowns.items())]
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
            for target, cooldown in sorted(cooldowns.items(), key=_order)[:_MAX_COOLDOWNS]
        ],
    )


def _order(item: tuple[CooldownTarget, Cooldown]) -> tuple[bool, CooldownTarget]:
    """Sort the cooldowns of all tenants before those of a tenant."""
    return bool(item[0].tenant_id), item[0]


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
        audience=render_audience(cooldown.audience),
        tenant_id=target.tenant_id,
    )
    rendered.until_time.FromDatetime(cooldown.until)
    return rendered
