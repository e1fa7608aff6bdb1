"""Keep model calls within the budgets of the tenant and of the run, and charge their usage."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from functools import partial

from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id

from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.domain.answer import (
    CallPiece,
    HiddenOutput,
    TextPiece,
    ThoughtPiece,
    Usage,
    UsageBounds,
    written_bytes_of,
)
from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.domain.charges import ChargedUsage, charge_for
from spawnmesh_model_router.domain.events import (
    AttemptFailed,
    AttemptStarted,
    Completed,
    DiscardedAnswer,
    Event,
    UsageReport,
)
from spawnmesh_model_router.domain.images import ImageOutcome
from spawnmesh_model_router.domain.policy import Prices, estimated_tokens
from spawnmesh_model_router.domain.reservations import (
    Reservation,
    largest_cost,
    largest_tokens,
    seconds_until_expiry,
)
from spawnmesh_model_router.domain.router_config import RouterConfig
from spawnmesh_model_router.domain.routing_request import RoutingRequest
from spawnmesh_model_router.domain.run_calls import RunCall, seconds_to_record
from spawnmesh_model_router.operations.budget_counter import BudgetCounter
from spawnmesh_model_router.operations.failover.chain import call_chain
from spawnmesh_model_router.operations.failover.dependencies import ChainDependencies
from spawnmesh_model_router.operations.failover.routing import build_links
from spawnmesh_model_router.operations.failover.usage_estimate import UsageEstimate
from spawnmesh_model_router.operations.run_budgets import RunBudgets
from spawnmesh_model_router.operations.usage_log import UsageLog

_Bounds = Sequence[tuple[Prices, UsageBounds]]
"""The prices of each candidate, and the most tokens that it can use."""


async def generate_within_budget(
    deps: ChainDependencies,
    budgets: BudgetCounter,
    run_budgets: RunBudgets,
    usage: UsageLog,
    routing: RoutingRequest,
    request: ProviderRequest,
) -> AsyncGenerator[Event, None]:
    """Yield the events of `call_chain`, and charge the tenant for each answer.

    The charge comes before the last event, so that it counts for the caller's next call. If the
    caller leaves, the answer breaks off, or the provider reports no usage, the charge is an
    estimate from what the model read, thought and wrote. If the tenant's spending is limited, the
    largest cost of the call is reserved until its last charge. If the call counts in budgets of
    sessions, the sum of its charges is recorded there once, before the last event too. Each charge
    is noted as spending of the call's agent and the model, with or without limits, and each failed
    call with its reason. Raises MeshError BUDGET_EXCEEDED and SESSION_BUDGET_EXCEEDED before any
    provider is called.
    """
    tenant_id, limits, seconds = routing.tenant_id, routing.policy.limits, routing.deadline - deps.monotonic()
    bounds = _bounds(deps.config, routing, request)
    reservation = _reservation(routing, bounds, seconds)
    budgeted = run_budgets.begin(_run_call(routing, bounds, seconds))
    open_call, failed = _OpenCall(deps.config, UsageEstimate(request)), ChargedUsage()

    async def charge(model: ModelRef, charged: ChargedUsage, *, is_last: bool = False) -> None:
        deps.metrics.charged(routing, model, charged)
        usage.note_charge(tenant_id, routing.agent_id, model, charged)
        released = reservation if is_last else None
        await budgets.charge(tenant_id, limits, charged.token_count, charged.cost_micros, released)

    try:
        await budgets.admit(tenant_id, limits, reservation)
        await budgeted.admit()
        async with aclosing(
            call_chain(deps, routing, request, partial(usage.note_failure, tenant_id))
        ) as events:
            async for event in events:
                lost = open_call.lost_by(event)
                # A call that is charged is closed first: the caller may leave meanwhile.
                open_call.observe(event)
                if lost is not None:
                    model, charged = lost
                    failed += charged
                    await charge(model, charged)
                if isinstance(event, DiscardedAnswer | HiddenOutput):
                    continue
                if isinstance(event, Completed):
                    budgeted.record(failed + event.charged)
                    await charge(event.model, event.charged, is_last=True)
                    await budgeted.recorded()
                    yield replace(event, failed_usage=failed)
                else:
                    yield event
    except MeshError as error:
        open_call.close_if_silent()
        error.facts.update(_usage_facts(failed + open_call.charged()))
        raise
    finally:
        last = open_call.charged()
        # Before anything that the caller can cancel.
        budgeted.record(failed + last)
        if open_call.model is not None:
            await charge(open_call.model, last, is_last=True)
        await budgets.settle(tenant_id, limits, reservation)
        await budgeted.recorded()


def _bounds(config: RouterConfig, routing: RoutingRequest, request: ProviderRequest) -> _Bounds:
    """Return the bounds of the candidates; none if no budget needs them.

    Raises MeshError UNKNOWN_MODEL.
    """
    if not (routing.policy.limits.spend_micros_per_day or routing.budget_run_id):
        return ()
    models = [config.models[str(link.model)] for link in build_links(config, routing)]
    return [(model.prices, request.usage_bounds(model)) for model in models]


def _reservation(routing: RoutingRequest, bounds: _Bounds, seconds: float) -> Reservation | None:
    """Return what the call has to reserve; None if the tenant's spending has no limit."""
    limit = routing.policy.limits.spend_micros_per_day
    if not limit:
        return None
    return Reservation(new_id(IdKind.RESERVATION), largest_cost(bounds), limit, seconds_until_expiry(seconds))


def _run_call(routing: RoutingRequest, bounds: _Bounds, seconds: float) -> RunCall | None:
    """Return the call as the budgets of its run count it; None if it counts in none."""
    if not routing.budget_run_id:
        return None
    return RunCall(
        call_id=new_id(IdKind.MODEL_CALL),
        tenant_id=routing.tenant_id,
        session_id=routing.session_id,
        run_id=routing.budget_run_id,
        largest_token_count=largest_tokens(bounds),
        largest_cost_micros=largest_cost(bounds),
        expires_in_seconds=seconds_to_record(seconds),
        epoch=routing.run_epoch,
    )


def _usage_facts(charged: ChargedUsage) -> dict[str, str]:
    """Return the facts of an error about the tokens that were used without an answer; none if none
    were.
    """
    if not charged.token_count:
        return {}
    counts = asdict(charged.usage)
    facts = {f"used_{name}_token_count": str(count) for name, count in counts.items()}
    return facts | {"used_cost_micros": str(charged.cost_micros)}


@dataclass(slots=True)
class _OpenCall:
    """A call whose provider has not reported its usage yet. `model` is None if no call is open.

    `read` is the input usage, if the provider reported it at the start of its answer.
    """

    config: RouterConfig
    estimate: UsageEstimate
    model: ModelRef | None = None
    images: ImageOutcome = ImageOutcome.NO_IMAGES
    written_bytes: int = 0
    read: Usage | None = None

    def observe(self, event: Event | UsageReport) -> None:
        match event:
            case AttemptStarted():
                self.model, self.images, self.written_bytes, self.read = event.model, event.images, 0, None
            case HiddenOutput():
                self.written_bytes += written_bytes_of(event)
                self.read = event.read or self.read
            case TextPiece() | ThoughtPiece() | CallPiece():  # A complete call was counted as it grew.
                self.written_bytes += written_bytes_of(event)
            case DiscardedAnswer() | AttemptFailed() | Completed():
                self.model = None

    def lost_by(self, event: Event | UsageReport) -> tuple[ModelRef, ChargedUsage] | None:
        """Return the usage of an answer that the event reports as failed; None without one.

        An answer that broke off before its first output is an estimate of what was written.
        """
        if isinstance(event, DiscardedAnswer):
            return event.model, self._priced(event.model, event.usage)
        if isinstance(event, AttemptFailed) and self.model is not None and self.written_bytes:
            return self.model, self.charged()
        return None

    def close_if_silent(self) -> None:
        """Close a call without output: a provider that only refuses charges nothing."""
        if not self.written_bytes:
            self.model = None

    def charged(self) -> ChargedUsage:
        """Return the estimated usage of the open call; nothing if no call is open."""
        if self.model is None:
            return ChargedUsage()
        read = self.read or Usage()
        usage = replace(
            read,
            input=read.input or self.estimate.input_tokens(self.images),
            output=estimated_tokens(self.written_bytes),
        )
        return self._priced(self.model, usage)

    def _priced(self, model: ModelRef, usage: Usage) -> ChargedUsage:
        return charge_for(self.config.models[str(model)].prices, usage)
