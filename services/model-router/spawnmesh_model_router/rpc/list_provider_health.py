"""ListProviderHealth: list the providers with their credentials and cooldowns, page by page."""

from collections.abc import Sequence

from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1 import routing_pb2
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_runtime.caller import Caller, CallerKind

from spawnmesh_model_router.domain.cooldown import Cooldown, CooldownTarget, Scope
from spawnmesh_model_router.rpc.dependencies import Dependencies
from spawnmesh_model_router.rpc.messages import render_audience, render_reason

_DEFAULT_PAGE_SIZE = 100
_MAX_COOLDOWNS = 1000  # Of a provider. Each tenant can have its own.
_COOLDOWNS_OF_PAGE = 2000
"""A page ends behind the provider with this cooldown, far below the largest message."""


async def list_provider_health(
    request: pb.ListProviderHealthRequest, caller: Caller, deps: Dependencies
) -> pb.ListProviderHealthResponse:
    """Return a page of the configured providers, by name, with their active and expired cooldowns.

    A client sees those of all tenants and of its own. Raises INVALID_REQUEST for a page token of
    another list.
    """
    last = position_of(request, (str,), caller.tenant_id)
    size = request.page_size or _DEFAULT_PAGE_SIZE
    found = sorted(name for name in deps.chain.config.providers if last is None or name > last[0])
    cooldowns = _cooldowns_of(found[:size], caller, deps)
    response = pb.ListProviderHealthResponse()
    cooldown_count = 0
    for provider in found[:size]:
        response.providers.append(_render_health(deps, provider, cooldowns[provider]))
        cooldown_count += len(response.providers[-1].cooldowns)
        if cooldown_count >= _COOLDOWNS_OF_PAGE:
            break
    if len(response.providers) < len(found):
        end = response.providers[-1].provider
        response.next_page_token = page_token([end], request, caller.tenant_id)
    return response


def _cooldowns_of(
    providers: Sequence[str], caller: Caller, deps: Dependencies
) -> dict[str, dict[CooldownTarget, Cooldown]]:
    """Return the cooldowns of each provider that the caller sees."""
    is_operator = caller.kind is CallerKind.ADMIN
    cooldowns: dict[str, dict[CooldownTarget, Cooldown]] = {name: {} for name in providers}
    for target, cooldown in deps.cooldowns.all().items():
        if target.provider in cooldowns and (is_operator or target.tenant_id in ("", caller.tenant_id)):
            cooldowns[target.provider][target] = cooldown
    return cooldowns


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
    return routing_pb2.Cooldown(
        scope=routing_pb2.CooldownScope.Value(f"COOLDOWN_SCOPE_{target.scope.value}"),
        target=name,
        reason=render_reason(cooldown.reason),
        failure_count=cooldown.failures,
        audience=render_audience(cooldown.audience),
        tenant_id=target.tenant_id,
        start_time=timestamp_of(cooldown.failed_at),
        until_time=timestamp_of(cooldown.until),
    )
