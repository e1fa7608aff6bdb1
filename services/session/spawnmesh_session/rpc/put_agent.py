"""PutAgent. Writes an agent of the token's tenant."""

from spawnmesh.session.v1.tenant_pb2 import AgentProfile as AgentProto
from spawnmesh.session.v1.tenant_service_pb2 import PutAgentRequest, PutAgentResponse
from spawnmesh_core.errors import invalid
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.agents import (
    BUILT_IN_TOOLS,
    EVERY_AGENT,
    AgentProfile,
    agent_limits_of,
    change_agent,
    check_agent_count,
    check_mcp_servers,
    is_agent_id,
)
from spawnmesh_session.domain.tenants import require_ready
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_text, parse_thinking, render_agent
from spawnmesh_session.store import agents, tenants


async def put_agent(request: PutAgentRequest, caller: Caller, deps: Dependencies) -> PutAgentResponse:
    """Write the agent.

    Raise AGENT_COUNT_EXCEEDED for a new one over the tenant's limit, MCP_SERVER_COUNT_EXCEEDED,
    ETAG_DIFFERS, and UNKNOWN_AGENT for an etag of an agent that does not exist.
    """
    tenant_id, agent = caller.tenant_id, _parse_agent(request.agent)
    async with deps.database.pipelined(tenant_id) as connection:
        require_ready(tenant_id, await tenants.enter_tenant(connection, tenant_id))
        # Of two concurrent calls, the second one finds the agent of the first.
        limits = agent_limits_of((await tenants.lock_tenant(connection, tenant_id)).settings)
        check_mcp_servers(agent, limits)
        current = await agents.get_agent(connection, tenant_id, agent.agent_id)
        written = change_agent(current, agent, request.agent.etag)
        if current is None:
            check_agent_count(await agents.count_agents(connection, tenant_id), limits)
        if written is not None:
            await agents.put_agent(connection, tenant_id, written)
    return PutAgentResponse(agent=render_agent(written or current or agent))


def _parse_agent(agent: AgentProto) -> AgentProfile:
    """Return the agent. Raise INVALID_REQUEST for an unknown tool or a malformed agent id."""
    for index, tool in enumerate(agent.tools):
        if tool not in BUILT_IN_TOOLS:
            raise invalid(f"agent.tools[{index}]", f"is none of {', '.join(BUILT_IN_TOOLS)}")
    for index, name in enumerate(agent.spawnable_agents):
        if name != EVERY_AGENT and not is_agent_id(name):
            raise invalid(f"agent.spawnable_agents[{index}]", f"is neither an agent's id nor {EVERY_AGENT!r}")
    return AgentProfile(
        agent_id=agent.agent_id,
        system_prompt=parse_text("agent.system_prompt", agent.system_prompt),
        models=tuple(parse_text("agent.models", model) for model in agent.models),
        tools=tuple(agent.tools),
        spawnable_agents=tuple(agent.spawnable_agents),
        max_turn_count=agent.max_turn_count,
        context_token_budget=agent.context_token_budget,
        thinking=parse_thinking(agent.thinking),
        mcp_servers=tuple(agent.mcp_servers),
    )
