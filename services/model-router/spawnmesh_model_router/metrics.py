"""Metrics of calls to providers.

Providers, models and classes of tenants are those of the operator's configuration, so their number
is bounded. Agents have the names that tenants chose: a bounded number of them are attributes.
Tenants are not attributes.
"""

from opentelemetry.metrics import Meter

from spawnmesh_model_router.domain.answer import Finished, ProviderFailed
from spawnmesh_model_router.domain.bounded_names import BoundedNames
from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.domain.charges import ChargedUsage
from spawnmesh_model_router.domain.cooldown import CooldownTarget
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.domain.router_config import Provider
from spawnmesh_model_router.domain.routing_request import RoutingRequest
from spawnmesh_model_router.telemetry import provider_name

_PROVIDER = "spawnmesh.model_router.provider"
_REASON = "spawnmesh.failover.reason"
_MODEL = "gen_ai.request.model"
_CLASS = "spawnmesh.tenant.class"
_AGENT = "gen_ai.agent.name"
_TYPE = "gen_ai.token.type"
MAX_AGENTS = 100
"""The agents with series of their own in a process."""
MAX_AGENTS_OF_TENANT = 10
"""Those among them that one tenant can bring."""
MAX_CLASSES = 16
"""Twice the classes that an operator can set: some may have had other names before."""
NO_CLASS = "none"
NO_AGENT = "none"
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
        self._agents = BoundedNames(MAX_AGENTS, MAX_AGENTS_OF_TENANT)
        self._classes = BoundedNames(MAX_CLASSES, MAX_CLASSES)
        self._charged_tokens = meter.create_counter(
            "spawnmesh.model_router.tokens",
            unit="{token}",
            description="Charged tokens by model and class of tenants; input includes those of the caches.",
        )
        self._cost = meter.create_counter(
            "spawnmesh.model_router.cost",
            unit="{micro}",
            description="Cost of calls by model and class of tenants, in millionths of the currency.",
        )
        self._agent_tokens = meter.create_counter(
            "spawnmesh.model_router.agent.tokens",
            unit="{token}",
            description="Charged tokens, input and output, by model and agent.",
        )
        self._agent_cost = meter.create_counter(
            "spawnmesh.model_router.agent.cost",
            unit="{micro}",
            description="Cost of calls by model and agent, in millionths of the currency.",
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

    def charged(self, routing: RoutingRequest, model: ModelRef, charged: ChargedUsage) -> None:
        """Add the tokens and the cost of a call of the model, which may have failed."""
        usage, tenant_id = charged.usage, routing.tenant_id
        tenant_class = self._classes.bound(routing.policy.tenant_class or NO_CLASS, tenant_id)
        of_class = {_PROVIDER: model.provider, _MODEL: model.model, _CLASS: tenant_class}
        self._charged_tokens.add(usage.input, {**of_class, _TYPE: "input"})
        self._charged_tokens.add(usage.output, {**of_class, _TYPE: "output"})
        if usage.cache_read:
            self._charged_tokens.add(usage.cache_read, {**of_class, _TYPE: "cache_read"})
        if usage.cache_write:
            self._charged_tokens.add(usage.cache_write, {**of_class, _TYPE: "cache_write"})
        self._cost.add(charged.cost_micros, of_class)
        agent = self._agents.bound(routing.agent_id, tenant_id) if routing.agent_id else NO_AGENT
        of_agent = {_PROVIDER: model.provider, _MODEL: model.model, _AGENT: agent}
        self._agent_tokens.add(charged.token_count, of_agent)
        self._agent_cost.add(charged.cost_micros, of_agent)

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
