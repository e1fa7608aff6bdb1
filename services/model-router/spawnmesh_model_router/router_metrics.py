"""What becomes of calls of providers, as metrics. Providers are named as the operator's configuration names them; models and tenants are not."""

from opentelemetry.metrics import Meter

from spawnmesh_model_router.domain.cooldown import Scope
from spawnmesh_model_router.domain.reasons import FailoverReason

_PROVIDER = "spawnmesh.model_router.provider"
_REASON = "spawnmesh.failover.reason"


class RouterMetrics:
    """Counts over all tenants, in the process that does it."""

    def __init__(self, meter: Meter) -> None:
        self._attempts = meter.create_counter(
            "spawnmesh.model_router.attempts",
            unit="{attempt}",
            description="Calls of providers that ended; error.type is the reason of one that failed.",
        )
        self._failovers = meter.create_counter(
            "spawnmesh.model_router.failovers",
            unit="{failover}",
            description="Candidates asked because the one before them failed, by its reason and by both providers.",
        )
        self._cooldowns = meter.create_counter(
            "spawnmesh.model_router.cooldowns",
            unit="{cooldown}",
            description="Models, credentials and providers that began to rest here; not those whose rest went on.",
        )

    def attempted(self, provider: str, reason: FailoverReason | None) -> None:
        """A call of the provider ended, and failed where there is a reason."""
        failed = {"error.type": reason.value} if reason is not None else {}
        self._attempts.add(1, {_PROVIDER: provider, **failed})

    def failed_over(self, provider: str, next_provider: str, reason: FailoverReason) -> None:
        """A candidate of `next_provider` is asked in the place of one of `provider`, which may be the same."""
        told = {_PROVIDER: provider, "spawnmesh.model_router.next_provider": next_provider, _REASON: reason.value}
        self._failovers.add(1, told)

    def rested(self, provider: str, scope: Scope, reason: FailoverReason) -> None:
        """Something of the provider began to rest."""
        told = {
            _PROVIDER: provider,
            "spawnmesh.model_router.cooldown.scope": scope.value.lower(),
            _REASON: reason.value,
        }
        self._cooldowns.add(1, told)
