"""Metrics of calls to providers.

Providers and models are those of the operator's configuration, so their number is bounded. Tenants
are not attributes.
"""

from opentelemetry.metrics import Meter

from spawnmesh_model_router.domain.answer import Finished, ProviderFailed
from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.domain.cooldown import CooldownTarget
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.domain.router_config import Provider
from spawnmesh_model_router.telemetry import provider_name

_PROVIDER = "spawnmesh.model_router.provider"
_REASON = "spawnmesh.failover.reason"
# The buckets of the conventions of OpenTelemetry.
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = tuple(4**power for power in range(14))


class RouterMetrics:
    """Counts over all tenants, in the process that makes the calls."""

    def __init__(self, meter: Meter) -> None:
        self._attempts = meter.create_counter(
            "spawnmesh.model_router.attempts",
            unit="{attempt}",
            description="Finished calls to providers; error.type is the reason of a failed call.",
        )
        self._durations = meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="Duration of calls of models; error.type is the reason of a failed call.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Tokens of an answer, as its provider counted them, by type: input or output.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._cost = meter.create_counter(
            "spawnmesh.model_router.cost",
            unit="{micro}",
            description=(
                "Cost of calls, broken ones included, in millionths of the currency of the prices in the "
                "configuration."
            ),
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

    def attempted(
        self, model: ModelRef, provider: Provider, seconds: float, end: Finished | ProviderFailed
    ) -> None:
        """Count and time a finished call of the model."""
        failed = {"error.type": end.reason.value} if isinstance(end, ProviderFailed) else {}
        common = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider_name(model.provider, provider),
            "gen_ai.request.model": model.model,
        }
        self._attempts.add(1, {_PROVIDER: model.provider, **failed})
        self._durations.record(seconds, {**common, **failed})
        if isinstance(end, Finished):
            self._tokens.record(end.usage.input, {**common, "gen_ai.token.type": "input"})
            self._tokens.record(end.usage.output, {**common, "gen_ai.token.type": "output"})

    def charged(self, model: ModelRef, spend_micros: int) -> None:
        """Add the cost of a call of the model, in millionths of the currency."""
        self._cost.add(spend_micros, {_PROVIDER: model.provider, "gen_ai.request.model": model.model})

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
