"""UpdateAgent. Changes the fields of an agent that `update_mask` names, or creates the agent."""

from google.protobuf.json_format import MessageToDict
from spawnmesh.session.v1.tenant_pb2 import AgentProfile as AgentProto
from spawnmesh.session.v1.tenant_service_pb2 import UpdateAgentRequest, UpdateAgentResponse
from spawnmesh_calls.field_masks import Path, apply_changes, changed_paths
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
    require_agent,
)
from spawnmesh_session.domain.tenants import require_ready
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_text, parse_thinking, render_agent
from spawnmesh_session.store import agents, tenants

_FIXED = frozenset({"agent_id", "version", "etag"})


async def update_agent(
    request: UpdateAgentRequest, caller: Caller, deps: Dependencies
) -> UpdateAgentResponse:
    """Change the masked fields of the agent, or create it.

    Raise AGENT_COUNT_EXCEEDED for a new one over the tenant's limit, MCP_SERVER_COUNT_EXCEEDED,
    ETAG_DIFFERS, and UNKNOWN_AGENT for an agent that does not exist, if it has an etag or
    `allow_missing` is not set.
    """
    tenant_id, given = caller.tenant_id, request.agent
    _parse_agent(given)
    paths = changed_paths(request.update_mask, given, _FIXED)
    async with deps.database.pipelined(tenant_id) as connection:
        require_ready(tenant_id, await tenants.enter_tenant(connection, tenant_id))
        # Of two concurrent calls, the second one finds the agent of the first.
        limits = agent_limits_of((await tenants.lock_tenant(connection, tenant_id)).settings)
        current = await agents.get_agent(connection, tenant_id, given.agent_id)
        if current is None and not request.allow_missing:
            require_agent(given.agent_id, current)
        wanted = _changed(current, given, paths)
        check_mcp_servers(wanted, limits)
        written = change_agent(current, wanted, given.etag)
        if current is None:
            check_agent_count(await agents.count_agents(connection, tenant_id), limits)
        if written is not None and not await agents.write_agent(connection, tenant_id, written):
            raise RuntimeError("an agent of a tenant that is locked was changed")
    return UpdateAgentResponse(agent=render_agent(written or current or wanted))


def _changed(current: AgentProfile | None, given: AgentProto, paths: tuple[Path, ...]) -> AgentProfile:
    """Return the agent as it is wanted: a new one has all that is given."""
    if current is None:
        return _parse_agent(given)
    wanted = render_agent(current)
    apply_changes(paths, given, wanted)
    return _parse_agent(wanted)


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
        approval=MessageToDict(agent.approval, preserving_proto_field_name=True),
    )
