"""Model calls within the tenant's budget."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from spawnmesh_core.errors import MeshError

from spawnmesh_model_router.ask import Ask
from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.domain.policy import cost_micros, estimated_tokens
from spawnmesh_model_router.events import AttemptFailed, AttemptStarted, Completed, Event
from spawnmesh_model_router.generate import generate
from spawnmesh_model_router.parts import Parts
from spawnmesh_model_router.policies import Policies
from spawnmesh_model_router.providers.answer import Call, TextPiece, Usage


async def generate_within_budget(
    parts: Parts, policies: Policies, tenant_id: str, ask: Ask
) -> AsyncGenerator[Event, None]:
    """As `generate`; what an answer used up is counted before its caller has it, so that the next call is judged by it. One that its caller
    leaves, or that breaks, is counted by what was read and said until then.

    Raises MeshError BUDGET_EXCEEDED before anyone is called.
    """
    limits = ask.policy.limits
    await policies.admit(tenant_id, limits)
    under_way = _UnderWay()

    async def charge(model: ModelRef, usage: Usage) -> None:
        prices = parts.config.models[str(model)].prices
        cost = cost_micros(prices, usage.input, usage.output, usage.cache_read, usage.cache_write)
        await policies.charge(tenant_id, limits, usage.input + usage.output, cost)

    try:
        async with aclosing(generate(parts, ask)) as events:
            async for event in events:
                if limits:
                    under_way.note(event)
                    if isinstance(event, Completed):
                        await charge(event.model, event.finished.usage)
                yield event
    except MeshError:
        under_way.refused()
        raise
    finally:
        if under_way.model is not None:
            await charge(under_way.model, under_way.usage(ask))


@dataclass(slots=True)
class _UnderWay:
    """A call whose provider has not said yet what it used; `model` is None while there is none."""

    model: ModelRef | None = None
    said_bytes: int = 0

    def note(self, event: Event) -> None:
        match event:
            case AttemptStarted():
                self.model, self.said_bytes = event.model, 0
            case TextPiece():
                self.said_bytes += len(event.text.encode("utf-8", "replace"))
            case Call():
                self.said_bytes += len(event.block_json.encode("utf-8", "replace"))
            case AttemptFailed() | Completed():
                self.model = None

    def refused(self) -> None:
        """A provider that has said nothing but no wants nothing for it."""
        if not self.said_bytes:
            self.model = None

    def usage(self, ask: Ask) -> Usage:
        return Usage(estimated_tokens(ask.question.text_bytes), estimated_tokens(self.said_bytes))
