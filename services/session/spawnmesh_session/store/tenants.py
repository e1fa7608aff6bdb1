"""Tenants and their agents."""

from dataclasses import asdict
from typing import Any

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection

from spawnmesh_session.domain import AgentProfile, limits_of
from spawnmesh_session.store.statements import SQL


async def insert(connection: Connection, tenant_id: str, display_name: str, settings: dict[str, Any]) -> None:
    """Inserts the tenant unless it exists."""
    values = {
        "tenant_id": tenant_id,
        "display_name": display_name,
        "settings": Jsonb(settings),
        "max_running_run_count": limits_of(settings).max_running_run_count,
    }
    await connection.execute(SQL["insert_tenant"], values)


async def get(connection: Connection, tenant_id: str) -> DictRow:
    """The tenant, ready or not; refused with UNKNOWN_TENANT where there is none."""
    row = await (await connection.execute(SQL["get_tenant"], {"tenant_id": tenant_id})).fetchone()
    if row is None:
        raise MeshError(
            Reason.UNKNOWN_TENANT,
            f"tenant {tenant_id} has not been created; an operator creates it with `spawnmesh tenant create {tenant_id}`",
            facts={"tenant_id": tenant_id},
        )
    return row


async def get_ready(connection: Connection, tenant_id: str) -> DictRow:
    """The tenant, once its creation is complete; refused with UNKNOWN_TENANT otherwise."""
    row = await get(connection, tenant_id)
    if not row["ready"]:
        raise MeshError(
            Reason.UNKNOWN_TENANT,
            f"the creation of tenant {tenant_id} is not complete; repeat CreateTenant",
            facts={"tenant_id": tenant_id},
        )
    return row


async def mark_ready(connection: Connection, tenant_id: str) -> None:
    """Opens the tenant for spawns."""
    await connection.execute(SQL["mark_tenant_ready"], {"tenant_id": tenant_id})


async def list_ready(connection: Connection) -> list[DictRow]:
    """Every tenant, by id; in the scope of every tenant."""
    return await (await connection.execute(SQL["list_tenants"])).fetchall()


def _agent(row: DictRow) -> AgentProfile:
    return AgentProfile(
        agent_id=row["agent_id"],
        system_prompt=row["system_prompt"],
        models=tuple(row["models"]),
        tools=tuple(row["tools"]),
        spawnable_agents=tuple(row["spawnable_agents"]),
        max_turn_count=row["max_turn_count"],
        context_token_budget=row["context_token_budget"],
    )


def _values(tenant_id: str, agent: AgentProfile) -> dict[str, Any]:
    lists = {"models": list(agent.models), "tools": list(agent.tools), "spawnable_agents": list(agent.spawnable_agents)}
    return {**asdict(agent), **lists, "tenant_id": tenant_id}


async def put_agent(connection: Connection, tenant_id: str, agent: AgentProfile) -> None:
    """Inserts the agent, or replaces the one of its id."""
    await connection.execute(SQL["put_agent"], _values(tenant_id, agent))


async def insert_agent(connection: Connection, tenant_id: str, agent: AgentProfile) -> None:
    """Inserts the agent unless one of its id exists."""
    await connection.execute(SQL["insert_agent"], _values(tenant_id, agent))


async def get_agent(connection: Connection, tenant_id: str, agent_id: str) -> AgentProfile:
    """The agent; refused with UNKNOWN_AGENT where there is none."""
    row = await (await connection.execute(SQL["get_agent"], {"tenant_id": tenant_id, "agent_id": agent_id})).fetchone()
    if row is None:
        raise MeshError(
            Reason.UNKNOWN_AGENT,
            f"this tenant has no agent {agent_id!r}; PutAgent writes one",
            facts={"agent_id": agent_id},
        )
    return _agent(row)


async def list_agents(connection: Connection, tenant_id: str) -> list[AgentProfile]:
    """The tenant's agents, by id."""
    return [
        _agent(row) for row in await (await connection.execute(SQL["list_agents"], {"tenant_id": tenant_id})).fetchall()
    ]
