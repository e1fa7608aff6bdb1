"""Keep model calls within the tenant's budget, and charge their usage."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace

from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id

from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.domain.answer import HiddenOutput, TextPiece, Thought, ToolCall, Usage
from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.domain.events import (
    AttemptFailed,
    AttemptStarted,
    Completed,
    DiscardedAnswer,
    Event,
    UsageReport,
)
from spawnmesh_model_router.domain.images import ImageOutcome
from spawnmesh_model_router.domain.policy import IMAGE_TOKENS, cost_micros, estimated_tokens
from spawnmesh_model_router.domain.reservations import Reservation, largest_cost, seconds_until_expiry
from spawnmesh_model_router.domain.routing_request import RoutingRequest
from spawnmesh_model_router.operations.budget_counter import BudgetCounter
from spawnmesh_model_router.operations.failover.chain import call_chain
from spawnmesh_model_router.operations.failover.dependencies import ChainDependencies
from spawnmesh_model_router.operations.failover.routing import build_links


async def generate_within_budget(
    deps: ChainDependencies,
    budgets: BudgetCounter,
    tenant_id: str,
    routing: RoutingRequest,
    request: ProviderRequest,
) -> AsyncGenerator[Event, None]:
    """Yield the events of `call_chain`, and charge the tenant for each answer.

    The charge comes before the last event, so that it counts for the caller's next call. If the
    caller leaves, the answer breaks off, or the provider reports no usage, the charge is an
    estimate from what the model read, thought and wrote. If the tenant's spending is limited, the
    largest cost of the call is reserved until its last charge. Raises MeshError BUDGET_EXCEEDED
    before any provider is called.
    """
    limits = routing.policy.limits
    reservation = _reservation(deps, routing, request)
    open_call, failed = _OpenCall(_Estimate(routing, request)), Usage()

    async def charge(model: ModelRef, usage: Usage, *, is_last: bool = False) -> None:
        prices = deps.config.models[str(model)].prices
        cost = cost_micros(prices, usage.input, usage.output, usage.cache_read, usage.cache_write)
        deps.metrics.charged(model, cost)
        released = reservation if is_last else None
        await budgets.charge(tenant_id, limits, usage.input + usage.output, cost, released)

    try:
        await budgets.admit(tenant_id, limits, reservation)
        async with aclosing(call_chain(deps, routing, request)) as events:
            async for event in events:
                for model, usage in open_call.lost_by(event):
                    failed += usage
                    await charge(model, usage)
                open_call.observe(event)
                if isinstance(event, DiscardedAnswer | HiddenOutput):
                    continue
                if isinstance(event, Completed):
                    await charge(event.model, open_call.estimate.complete(event), is_last=True)
                    yield replace(event, failed_usage=failed)
                else:
                    yield event
    except MeshError as error:
        open_call.close_if_silent()
        if open_call.model is not None:
            failed += open_call.usage()
        error.facts.update(_usage_facts(failed))
        raise
    finally:
        if open_call.model is not None:
            await charge(open_call.model, open_call.usage(), is_last=True)
        await budgets.settle(tenant_id, limits, reservation)


def _reservation(
    deps: ChainDependencies, routing: RoutingRequest, request: ProviderRequest
) -> Reservation | None:
    """Return what the call has to reserve; None if the tenant's spending has no limit.

    Raises MeshError UNKNOWN_MODEL.
    """
    limit = routing.policy.limits.spend_micros_per_day
    if not limit:
        return None
    models = [deps.config.models[str(link.model)] for link in build_links(deps.config, routing)]
    return Reservation(
        new_id(IdKind.RESERVATION),
        largest_cost((model.prices, request.usage_bounds(model)) for model in models),
        limit,
        seconds_until_expiry(routing.deadline - deps.monotonic()),
    )


def _usage_facts(usage: Usage) -> dict[str, str]:
    """Return the facts of an error about the tokens that were used in vain; none if none were."""
    if not (usage.input or usage.output):
        return {}
    counts = asdict(usage)
    return {f"used_{name}_token_count": str(count) for name, count in counts.items()}


@dataclass(frozen=True, slots=True)
class _Estimate:
    """Estimates usage that the provider does not report."""

    routing: RoutingRequest
    request: ProviderRequest

    def complete(self, completed: Completed) -> Usage:
        """Return the reported usage of an answer, with estimates for counts that are missing."""
        reported = completed.finished.usage
        if reported.input and reported.output:
            return reported
        written = sum(map(_written_bytes, completed.answer.blocks))
        return replace(
            reported,
            input=reported.input or self.input_tokens(completed.images),
            output=reported.output or estimated_tokens(written),
        )

    def input_tokens(self, images: ImageOutcome) -> int:
        """Return the estimated tokens of the request."""
        image_count = self.routing.image_count if images is ImageOutcome.SENT else 0
        return estimated_tokens(self.request.text_bytes) + image_count * IMAGE_TOKENS


def _written_bytes(block: TextPiece | Thought | ToolCall) -> int:
    text = block.block_json if isinstance(block, ToolCall) else block.text
    return len(text.encode("utf-8", "replace"))


@dataclass(slots=True)
class _OpenCall:
    """A call whose provider has not reported its usage yet. `model` is None if no call is open.

    `read` is the input usage, if the provider reported it at the start of its answer.
    """

    estimate: _Estimate
    model: ModelRef | None = None
    images: ImageOutcome = ImageOutcome.NO_IMAGES
    written_bytes: int = 0
    read: Usage | None = None

    def observe(self, event: Event | UsageReport) -> None:
        match event:
            case AttemptStarted():
                self.model, self.images, self.written_bytes, self.read = event.model, event.images, 0, None
            case TextPiece():
                self.written_bytes += _written_bytes(event)
            case HiddenOutput():  # Includes tool calls: they are reported as they grow.
                self.written_bytes += event.written_bytes
                self.read = event.read or self.read
            case DiscardedAnswer() | AttemptFailed() | Completed():
                self.model = None

    def lost_by(self, event: Event | UsageReport) -> list[tuple[ModelRef, Usage]]:
        """Return the usage of an answer that the event reports as failed.

        An answer that broke off after hidden output is an estimate.
        """
        if isinstance(event, DiscardedAnswer):
            return [(event.model, event.usage)]
        if isinstance(event, AttemptFailed) and self.model is not None and self.written_bytes:
            return [(self.model, self.usage())]
        return []

    def close_if_silent(self) -> None:
        """Close a call without output: a provider that only refuses charges nothing."""
        if not self.written_bytes:
            self.model = None

    def usage(self) -> Usage:
        read = self.read or Usage()
        return replace(
            read,
            input=read.input or self.estimate.input_tokens(self.images),
            output=estimated_tokens(self.written_bytes),
        )
