"""Metrics of calls to providers.

Providers have the names of the operator's configuration. Models and tenants are not attributes.
"""

from opentelemetry.metrics import Meter

from spawnmesh_model_router.domain.cooldown import CooldownTarget
from spawnmesh_model_router.domain.reasons import FailoverReason

_PROVIDER = "spawnmesh.model_router.provider"
_REASON = "spawnmesh.failover.reason"


class RouterMetrics:
    """Counts over all tenants, in the process that makes the calls."""

    def __init__(self, meter: Meter) -> None:
        self._attempts = meter.create_counter(
            "spawnmesh.model_router.attempts",
            unit="{attempt}",
            description="Finished calls to providers; error.type is the reason of a failed call.",
        )
        self._failovers = meter.create_counter(
            "spawnmesh.model_router.failovers",
            unit="{failover}",
            description="Calls to a candidate because the one before it failed, by reason and providers.",
        )
        self._cooldowns = meter.create_counter(
            "spawnmesh.model_router.cooldowns",
            unit="{cooldown}",
            description="Cooldowns of models, credentials and providers that started here; not extensions.",
        )

    def attempted(self, provider: str, reason: FailoverReason | None) -> None:
        """Count a finished call of the provider. It failed if there is a reason."""
        failed = {"error.type": reason.value} if reason is not None else {}
        self._attempts.add(1, {_PROVIDER: provider, **failed})

    def failed_over(self, provider: str, next_provider: str, reason: FailoverReason) -> None:
        """Count a failover from `provider` to `next_provider`, which may be the same."""
        attributes = {
            _PROVIDER: provider,
            "spawnmesh.model_router.next_provider": next_provider,
            _REASON: reason.value,
        }
        self._failovers.add(1, attributes)

    def cooldown_started(self, target: CooldownTarget, reason: FailoverReason) -> None:
        """Count a cooldown of the target, for one tenant or for all."""
        attributes = {
            _PROVIDER: target.provider,
            "spawnmesh.model_router.cooldown.scope": target.scope.value.lower(),
            "spawnmesh.model_router.cooldown.audience": target.audience.value.lower(),
            _REASON: reason.value,
        }
        self._cooldowns.add(1, attributes)
