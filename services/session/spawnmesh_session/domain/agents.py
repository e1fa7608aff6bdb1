"""Agents: what runs a session, and what it may do."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import AGENT_ID
from spawnmesh_core.reasons import Reason

from spawnmesh_session.domain.etags import etag_differs, etag_of_values

DEFAULT_AGENT_ID = "default"
EVERY_AGENT = "*"
ASK_USER = "ask_user"
BUILT_IN_TOOLS = (
    "list_files",
    "read_file",
    "search_files",
    "write_file",
    "publish_files",
    "fetch_files",
    "sessions_spawn",
    "sessions_wait",
    "transcript_search",
    "transcript_describe",
    ASK_USER,
)


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """The prompt, models, tools and limits of an agent. A limit of 0 is no limit.

    `approval` is the ApprovalPolicy of the contract as JSON, empty if there is none. The version
    rises by one with each change.
    """

    agent_id: str
    system_prompt: str
    models: tuple[str, ...]
    tools: tuple[str, ...]
    spawnable_agents: tuple[str, ...]
    max_turn_count: int
    context_token_budget: int
    thinking: str = ""
    mcp_servers: tuple[str, ...] = ()
    approval: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1


DEFAULT_AGENT = AgentProfile(
    agent_id=DEFAULT_AGENT_ID,
    system_prompt=(
        "You carry out the task you are given, with the tools you have, and answer with the result."
    ),
    models=(),
    tools=tuple(tool for tool in BUILT_IN_TOOLS if tool != ASK_USER),  # Its callers may be programs.
    spawnable_agents=(EVERY_AGENT,),
    max_turn_count=0,
    context_token_budget=0,
)


def is_agent_id(text: str) -> bool:
    """Return whether the text is a well-formed agent id."""
    return AGENT_ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """The largest numbers of a tenant's agents, and of MCP servers that one of them names."""

    max_agent_count: int = 1000
    max_mcp_server_count: int = 8


def agent_limits_of(settings: Mapping[str, object]) -> AgentLimits:
    """Read the limits from a tenant's stored settings. An absent limit, or 0, has its default."""
    defaults = AgentLimits()

    def limit(name: str) -> int:
        value = settings.get(name)
        return value if isinstance(value, int) and value > 0 else int(getattr(defaults, name))

    return AgentLimits(*(limit(name) for name in AgentLimits.__slots__))


def check_agent_count(agent_count: int, limits: AgentLimits) -> None:
    """Raise AGENT_COUNT_EXCEEDED if a tenant with `agent_count` agents may have no more."""
    if agent_count >= limits.max_agent_count:
        raise MeshError(
            Reason.AGENT_COUNT_EXCEEDED,
            f"the tenant has {agent_count} agents, and {limits.max_agent_count} are allowed; replace or"
            " delete one of them, or ask the operator to raise max_agent_count",
            facts={"limit": limits.max_agent_count, "agents": agent_count},
        )


def check_mcp_servers(agent: AgentProfile, limits: AgentLimits) -> None:
    """Raise MCP_SERVER_COUNT_EXCEEDED if the agent names more servers than an agent may."""
    count = len(agent.mcp_servers)
    if count > limits.max_mcp_server_count:
        raise MeshError(
            Reason.MCP_SERVER_COUNT_EXCEEDED,
            f"the agent names {count} MCP servers, and {limits.max_mcp_server_count} are allowed; name fewer,"
            " or ask the operator to raise max_mcp_server_count",
            facts={"limit": limits.max_mcp_server_count, "mcp_servers": count},
        )


def etag_of(agent: AgentProfile) -> str:
    """Return the etag: a hash of the content and the version."""
    return etag_of_values(asdict(agent))


def change_agent(current: AgentProfile | None, wanted: AgentProfile, etag: str) -> AgentProfile | None:
    """Return the next version of an agent with this content; None if it has the content already.

    Raise ETAG_DIFFERS or UNKNOWN_AGENT if the change is based on another etag, unless it is empty.
    """
    if current is not None and replace(wanted, version=current.version) == current:
        return None
    if etag:
        check_etag("agent.etag", etag, require_agent(wanted.agent_id, current))
    return replace(wanted, version=current.version + 1 if current else 1)


def check_etag(field: str, etag: str, current: AgentProfile) -> None:
    """Raise ETAG_DIFFERS unless the etag of the field is that of the agent."""
    if etag != etag_of(current):
        raise etag_differs(field, "agent", current.agent_id, etag=etag_of(current), version=current.version)


def require_agent(agent_id: str, agent: AgentProfile | None) -> AgentProfile:
    """Return the agent. Raise UNKNOWN_AGENT if there is none."""
    if agent is None:
        raise MeshError(
            Reason.UNKNOWN_AGENT,
            f"this tenant has no agent {agent_id!r}; UpdateAgent with allow_missing creates one",
            facts={"agent_id": agent_id},
        )
    return agent
