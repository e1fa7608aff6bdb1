"""Model calls within the tenant's budget."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from spawnmesh_model_router.ask import Ask
from spawnmesh_model_router.domain.policy import cost_micros
from spawnmesh_model_router.events import Completed, Event
from spawnmesh_model_router.generate import generate
from spawnmesh_model_router.parts import Parts
from spawnmesh_model_router.policies import Policies


async def generate_within_budget(
    parts: Parts, policies: Policies, tenant_id: str, ask: Ask
) -> AsyncGenerator[Event, None]:
    """As `generate`; what an answer used up is counted before its caller has it, so that the next call is judged by it.

    Raises MeshError BUDGET_EXCEEDED before anyone is called.
    """
    limits = ask.policy.limits
    await policies.admit(tenant_id, limits)
    async with aclosing(generate(parts, ask)) as events:
        async for event in events:
            if isinstance(event, Completed) and limits:
                usage, model = event.finished.usage, parts.config.models[str(event.model)]
                cost = cost_micros(
                    usage.input,
                    usage.output,
                    input_price=model.input_micros_per_million_tokens,
                    output_price=model.output_micros_per_million_tokens,
                )
                await policies.charge(tenant_id, limits, usage.input + usage.output, cost)
            yield event
