"""Agents: what runs a session, and what it may do."""

from dataclasses import dataclass

from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import AGENT_ID
from spawnmesh_core.reasons import Reason

DEFAULT_AGENT_ID = "default"
EVERY_AGENT = "*"
MAX_AGENT_COUNT = 1000
"""Agents of one tenant. The contract of PutAgent states this number."""
BUILT_IN_TOOLS = (
    "list_files",
    "read_file",
    "search_files",
    "write_file",
    "sessions_spawn",
    "sessions_wait",
    "transcript_search",
    "transcript_describe",
)


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """The prompt, models, tools and limits of an agent. A limit of 0 is no limit."""

    agent_id: str
    system_prompt: str
    models: tuple[str, ...]
    tools: tuple[str, ...]
    spawnable_agents: tuple[str, ...]
    max_turn_count: int
    context_token_budget: int
    thinking: str = ""
    mcp_servers: tuple[str, ...] = ()


DEFAULT_AGENT = AgentProfile(
    agent_id=DEFAULT_AGENT_ID,
    system_prompt=(
        "You carry out the task you are given, with the tools you have, and answer with the result."
    ),
    models=(),
    tools=BUILT_IN_TOOLS,
    spawnable_agents=(EVERY_AGENT,),
    max_turn_count=0,
    context_token_budget=0,
)


def is_agent_id(text: str) -> bool:
    """Return whether the text is a well-formed agent id."""
    return AGENT_ID.fullmatch(text) is not None


def check_agent_count(agent_count: int) -> None:
    """Raise AGENT_COUNT_EXCEEDED if a tenant with `agent_count` agents may have no more."""
    if agent_count >= MAX_AGENT_COUNT:
        raise MeshError(
            Reason.AGENT_COUNT_EXCEEDED,
            "the tenant has as many agents as it may; replace one of them, or use another tenant for more",
            facts={"limit": MAX_AGENT_COUNT, "agents": agent_count},
        )


def require_agent(agent_id: str, agent: AgentProfile | None) -> AgentProfile:
    """Return the agent. Raise UNKNOWN_AGENT if there is none."""
    if agent is None:
        raise MeshError(
            Reason.UNKNOWN_AGENT,
            f"this tenant has no agent {agent_id!r}; PutAgent writes one",
            facts={"agent_id": agent_id},
        )
    return agent
