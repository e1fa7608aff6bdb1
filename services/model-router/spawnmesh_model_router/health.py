"""How providers fare, and ending their rests by hand."""

from spawnmesh.model_router.v1 import generation_pb2, routing_pb2
from spawnmesh_core.errors import MeshError, not_found

from spawnmesh_model_router.availability import credential_target
from spawnmesh_model_router.domain.cooldown import Cooldown, Scope
from spawnmesh_model_router.parts import Parts
from spawnmesh_model_router.store import Target


def list_provider_health(parts: Parts) -> list[routing_pb2.ProviderHealth]:
    """Every configured provider, by name, with what rests or has rested at it."""
    known = parts.availability.cooldowns()
    return [_health(parts, provider, known) for provider in sorted(parts.config.providers)]


async def clear_cooldown(parts: Parts, scope: routing_pb2.CooldownScope.ValueType, target: str) -> bool:
    """Whether there was a rest; it is over now, and saved so. Raises MeshError NOT_FOUND for what is not configured."""
    found = _target(parts, scope, target.strip())
    if found is None:
        raise _no_target(target)
    return await parts.availability.clear(found)


def _health(parts: Parts, provider: str, known: dict[Target, Cooldown]) -> routing_pb2.ProviderHealth:
    numbers = {name: number for number, name in parts.availability.numbered_credentials(provider).items()}
    rests = [
        _render(target, cooldown, numbers)
        for target, cooldown in sorted(known.items(), key=lambda item: (item[0].scope, item[0].name))
        if target.name.partition("/")[0] == provider
    ]
    return routing_pb2.ProviderHealth(
        provider=provider,
        credential_count=len(parts.config.providers[provider].credentials),
        readable_credential_count=len(numbers),
        cooldowns=rests,
    )


def _render(target: Target, cooldown: Cooldown, numbers: dict[str, int]) -> routing_pb2.Cooldown:
    """A credential is told by its place in the configuration: not even a digest of a key leaves."""
    name = target.name
    if target.scope is Scope.CREDENTIAL:
        provider, _, fingerprint = name.partition("/")
        name = f"{provider}/{numbers.get(fingerprint, 0)}"
    rendered = routing_pb2.Cooldown(
        scope=routing_pb2.CooldownScope.Value(f"COOLDOWN_SCOPE_{target.scope.value}"),
        target=name,
        reason=generation_pb2.FailoverReason.Value(f"FAILOVER_REASON_{cooldown.reason.value}"),
        failure_count=cooldown.failures,
    )
    rendered.until_time.FromDatetime(cooldown.until)
    return rendered


def _target(parts: Parts, scope: routing_pb2.CooldownScope.ValueType, name: str) -> Target | None:
    match scope:
        case routing_pb2.COOLDOWN_SCOPE_MODEL:
            model = parts.config.model_called(name)
            return Target(Scope.MODEL, str(model)) if model is not None else None
        case routing_pb2.COOLDOWN_SCOPE_CREDENTIAL:
            provider, _, number = name.partition("/")
            if provider not in parts.config.providers or not number.isdecimal():
                return None
            fingerprint = parts.availability.numbered_credentials(provider).get(int(number))
            return credential_target(provider, fingerprint) if fingerprint is not None else None
        case _:
            return Target(Scope.PROVIDER, name) if name in parts.config.providers else None


def _no_target(target: str) -> MeshError:
    return not_found("model, credential or provider", target)
