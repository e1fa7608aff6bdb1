"""Agents of a tenant."""

from dataclasses import asdict, dataclass
from typing import Any

from psycopg.types.json import Jsonb
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_session.domain.agents import AgentProfile
from spawnmesh_session.store.rows import MAX_LIST_BYTES, agent_of

_SQL = load_statements(__name__)


def _columns(tenant_id: str, agent: AgentProfile) -> dict[str, Any]:
    columns = {
        name: list(value) if isinstance(value, tuple) else value for name, value in asdict(agent).items()
    }
    return {**columns, "approval": Jsonb(columns["approval"]), "tenant_id": tenant_id}


async def write_agent(connection: Connection, tenant_id: str, agent: AgentProfile) -> bool:
    """Insert the agent, or replace the one that is a version older.

    Return False, and write nothing, if the agent is at another version.
    """
    cursor = await connection.execute(_SQL["write_agent"], _columns(tenant_id, agent))
    return await cursor.fetchone() is not None


async def insert_agent(connection: Connection, tenant_id: str, agent: AgentProfile) -> None:
    """Insert the agent unless one with its id exists."""
    await connection.execute(_SQL["insert_agent"], _columns(tenant_id, agent))


async def delete_agent(connection: Connection, tenant_id: str, agent_id: str) -> None:
    """Delete the agent if it exists."""
    await connection.execute(_SQL["delete_agent"], {"tenant_id": tenant_id, "agent_id": agent_id})


async def get_agent(connection: Connection, tenant_id: str, agent_id: str) -> AgentProfile | None:
    """Return the agent; None if it does not exist."""
    values = {"tenant_id": tenant_id, "agent_id": agent_id}
    row = await (await connection.execute(_SQL["get_agent"], values)).fetchone()
    return agent_of(row) if row else None


async def count_agents(connection: Connection, tenant_id: str) -> int:
    """Return the number of the tenant's agents, exact while it is locked."""
    row = await (await connection.execute(_SQL["count_agents"], {"tenant_id": tenant_id})).fetchone()
    return int(row["agent_count"]) if row else 0


@dataclass(frozen=True, slots=True)
class AgentsPage:
    """Agents by id. The next page begins after `next_after_id`, which is empty on the last page."""

    agents: list[AgentProfile]
    next_after_id: str


async def list_agents(connection: Connection, tenant_id: str, *, after_id: str, page_size: int) -> AgentsPage:
    """Return a page of the tenant's agents: fewer if they are large, but at least one."""
    values = {
        "tenant_id": tenant_id,
        "after_id": after_id,
        "page_size": page_size,
        "max_bytes": MAX_LIST_BYTES,
    }
    rows = await (await connection.execute(_SQL["list_agents"], values)).fetchall()
    has_more = bool(rows) and rows[-1]["found_count"] > len(rows)
    return AgentsPage([agent_of(row) for row in rows], str(rows[-1]["agent_id"]) if has_more else "")
