"""Model calls within the tenant's budget."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

from spawnmesh_core.errors import MeshError

from spawnmesh_model_router.ask import Ask
from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.domain.images import ImageOutcome
from spawnmesh_model_router.domain.policy import IMAGE_TOKENS, cost_micros, estimated_tokens
from spawnmesh_model_router.events import AttemptFailed, AttemptStarted, Completed, Event, Spending, Used
from spawnmesh_model_router.generate import generate
from spawnmesh_model_router.parts import Parts
from spawnmesh_model_router.policies import Policies
from spawnmesh_model_router.providers.answer import Call, TextPiece, Thought, Unseen, Usage


async def generate_within_budget(
    parts: Parts, policies: Policies, tenant_id: str, ask: Ask
) -> AsyncGenerator[Event, None]:
    """As `generate`; what an answer used up is counted before its caller has it, so that the next call is judged by it. One that its caller
    leaves, that breaks, or whose provider does not say, is counted by what was read, thought and said until then.

    Raises MeshError BUDGET_EXCEEDED before anyone is called.
    """
    limits = ask.policy.limits
    await policies.budgets.admit(tenant_id, limits)
    under_way = _UnderWay()

    async def charge(model: ModelRef, usage: Usage) -> None:
        prices = parts.config.models[str(model)].prices
        cost = cost_micros(prices, usage.input, usage.output, usage.cache_read, usage.cache_write)
        await policies.budgets.charge(tenant_id, limits, usage.input + usage.output, cost)

    try:
        async with aclosing(generate(parts, ask)) as events:
            async for event in events:
                broken = under_way.broken(event, ask) if limits else None
                if limits:
                    under_way.note(event)
                if broken is not None:
                    await charge(*broken)
                if isinstance(event, Used):
                    await charge(event.model, event.usage)
                if isinstance(event, Used | Unseen):
                    continue
                if limits and isinstance(event, Completed):
                    await charge(event.model, _usage_of(event, ask))
                yield event
    except MeshError:
        under_way.refused()
        raise
    finally:
        if under_way.model is not None:
            await charge(under_way.model, under_way.usage(ask))


def _usage_of(completed: Completed, ask: Ask) -> Usage:
    """As the provider says; by an estimate where it says nothing."""
    said = completed.finished.usage
    if said.input and said.output:
        return said
    written = sum(map(_said_bytes, completed.answer.blocks))
    return replace(
        said,
        input=said.input or _read_tokens(ask, completed.images),
        output=said.output or estimated_tokens(written),
    )


def _read_tokens(ask: Ask, images: ImageOutcome) -> int:
    """What there is to read, where nobody counts it."""
    image_count = ask.image_count if images is ImageOutcome.SENT else 0
    return estimated_tokens(ask.question.text_bytes) + image_count * IMAGE_TOKENS


def _said_bytes(block: TextPiece | Thought | Call) -> int:
    text = block.block_json if isinstance(block, Call) else block.text
    return len(text.encode("utf-8", "replace"))


@dataclass(slots=True)
class _UnderWay:
    """A call whose provider has not said yet what it used; `model` is None while there is none. `read` is what it has said of that at once."""

    model: ModelRef | None = None
    images: ImageOutcome = ImageOutcome.NO_IMAGES
    said_bytes: int = 0
    read: Usage | None = None

    def note(self, event: Event | Spending) -> None:
        match event:
            case AttemptStarted():
                self.model, self.images, self.said_bytes, self.read = event.model, event.images, 0, None
            case TextPiece():
                self.said_bytes += _said_bytes(event)
            case Unseen():  # Calls too: they are told of as they grow.
                self.said_bytes += event.written_bytes
                self.read = event.read or self.read
            case Used() | AttemptFailed() | Completed():
                self.model = None

    def broken(self, event: Event | Spending, ask: Ask) -> tuple[ModelRef, Usage] | None:
        """What an attempt used that failed within its thoughts, and that nobody else counts."""
        if isinstance(event, AttemptFailed) and self.model is not None and self.said_bytes:
            return self.model, self.usage(ask)
        return None

    def refused(self) -> None:
        """A provider that has said nothing but no wants nothing for it."""
        if not self.said_bytes:
            self.model = None

    def usage(self, ask: Ask) -> Usage:
        read = self.read or Usage()
        return replace(
            read, input=read.input or _read_tokens(ask, self.images), output=estimated_tokens(self.said_bytes)
        )
