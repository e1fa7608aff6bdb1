"""`/agents` and `/agents/{agent_id}`: the agents of the tenant, to read."""

from urllib.parse import urlencode

from spawnmesh_client.resource_views import Agent
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from starlette.responses import Response

from spawnmesh_console.domain.agents import (
    DEFAULT_TOKEN_BUDGET,
    DEFAULT_TURN_COUNT,
    approval_sentences,
    approval_summary,
)
from spawnmesh_console.web.visit import Visit

_MISSING = "It may have been deleted, or belong to another tenant. Its sessions are still listed."


async def list_agents(visit: Visit) -> Response:
    """Show all agents, by id."""
    agents = await visit.mesh.agents.list()
    return visit.render("agents.html", agents=[(agent, _summary(agent)) for agent in agents])


async def show_agent(visit: Visit) -> Response:
    """Show one agent. One that does not exist is a page of its own, with 404."""
    agent_id = visit.path_part("agent_id")
    try:
        agent = await visit.mesh.agents.get(agent_id)
    except MeshError as error:
        if error.reason is not Reason.UNKNOWN_AGENT:
            raise
        return visit.render("refused.html", status=404, error=error, advice=_MISSING)
    return visit.render(
        "agent.html",
        agent=agent,
        sentences=_sentences(agent),
        sessions_query=urlencode({"agent": agent.agent_id}),
        route_query=_route_query(agent),
        turn_count=agent.max_turn_count or DEFAULT_TURN_COUNT,
        token_budget=agent.context_token_budget or DEFAULT_TOKEN_BUDGET,
        prompt_line_count=agent.system_prompt.count("\n") + 1,
    )


def _summary(agent: Agent) -> str:
    policy = agent.approval
    if policy is None:
        return ""
    return approval_summary(policy.tools, has_destructive=policy.destructive_mcp_tools)


def _sentences(agent: Agent) -> tuple[str, ...]:
    policy = agent.approval
    if policy is None:
        return approval_sentences((), has_destructive=False, timeout=None, on_expiry="")
    return approval_sentences(
        policy.tools,
        has_destructive=policy.destructive_mcp_tools,
        timeout=policy.timeout,
        on_expiry=policy.on_expiry or "",
    )


def _route_query(agent: Agent) -> str:
    """Return the address of the route that the agent's runs take: its models alone."""
    query = {"explain": next(iter(agent.models), ""), "fallbacks": ", ".join(agent.models[1:])}
    query |= {"tools": "1"} if agent.tools or agent.mcp_servers else {}
    return urlencode(
        {name: value for name, value in query.items() if value or name == "explain"} | {"only": "1"}
    )
