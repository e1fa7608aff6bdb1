"""`/sessions/{session_id}/context`: the part of a transcript that a model reads."""

from spawnmesh_client.resource_views import Agent
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from starlette.responses import Response

from spawnmesh_console.clients.assembled_context import read_context
from spawnmesh_console.domain.context_bar import ContextPart, context_bar
from spawnmesh_console.domain.context_view import PART_WORDS, folded
from spawnmesh_console.web.visit import Visit

_RUN_BUDGET = 100_000  # The budget of a run whose agent sets none.
_MAX_BUDGET = 2**31 - 1


async def show_context(visit: Visit) -> Response:
    """Show the context for the budget and the model of the address, else for those of the agent.

    `before` is the seq of an answer: its context is shown, and not that of the next call.
    """
    session = await visit.mesh.session(visit.path_part("session_id"))
    agent = await _agent(visit, session.agent_id)
    budget_text = visit.text("budget") or str((agent and agent.context_token_budget) or _RUN_BUDGET)
    model = visit.text("model")
    if "model" not in visit.request.query_params and agent is not None:
        model = next(iter(agent.models), "")
    budget, before = _budget(budget_text), visit.number("before")
    problem, context, bar = "", None, None
    if budget is None:
        problem = f"The budget is a whole number of tokens from 1 to {_MAX_BUDGET:,}."
    else:
        context = await read_context(
            visit.mesh,
            session.session_id,
            token_budget=budget,
            model=model,
            system_prompt="" if agent is None else agent.system_prompt,
            up_to_seq=max(before - 1, 0),
        )
        bar = context_bar(context.part_counts, budget)
    return visit.render(
        "context.html",
        status=400 if problem else 200,
        session=session,
        agent=agent,
        budget_text=budget_text,
        model=model,
        before=before if before > 1 else 0,
        models=await _models(visit),
        problem=problem,
        context=context,
        bar=bar,
        parts=ContextPart,
        words=PART_WORDS,
        folded=folded,
    )


def _budget(text: str) -> int | None:
    digits = text.replace(",", "")
    budget = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= 10 else 0
    return budget if 0 < budget <= _MAX_BUDGET else None


async def _agent(visit: Visit, agent_id: str) -> Agent | None:
    """Return the agent as it is now; None for one that was deleted."""
    try:
        return await visit.mesh.agents.get(agent_id)
    except MeshError as error:
        if error.reason is not Reason.UNKNOWN_AGENT:
            raise
        return None


async def _models(visit: Visit) -> list[str]:
    """Return the models to choose from; none if they cannot be read."""
    try:
        return [model.model for model in await visit.mesh.models.list()]
    except MeshError:
        return []
