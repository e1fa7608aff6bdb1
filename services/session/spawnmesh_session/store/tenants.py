"""Tenants and their agents."""

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection

from spawnmesh_session.domain import AgentProfile, limits_of
from spawnmesh_session.store.statements import SQL

_MAX_LIST_BYTES = 3 * 1024 * 1024  # An answer is less than the 4 MiB that gRPC takes by default.


async def insert(
    connection: Connection, tenant_id: str, display_name: str, settings: dict[str, Any], *, settings_version: int
) -> None:
    """Inserts the tenant unless it exists."""
    values = {**_columns(tenant_id, display_name, settings), "settings_version": settings_version}
    await connection.execute(SQL["insert_tenant"], values)


def _columns(tenant_id: str, display_name: str, settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "tenant_id": tenant_id,
        "display_name": display_name,
        "settings": Jsonb(settings),
        "max_running_run_count": limits_of(settings).max_running_run_count,
    }


async def find(connection: Connection, tenant_id: str) -> DictRow | None:
    """What there is of the tenant: its own row, with `settings` None where only its deletion is left, and its `deletion`, if any."""
    return await (await connection.execute(SQL["get_tenant"], {"tenant_id": tenant_id})).fetchone()


async def get(connection: Connection, tenant_id: str) -> DictRow:
    """The tenant, ready or not, being deleted or not; refused with UNKNOWN_TENANT where there is none."""
    return _existing(tenant_id, await find(connection, tenant_id))


async def enter(connection: Connection, tenant_id: str) -> DictRow | None:
    """As `find`, and no deletion of the tenant begins until the transaction has ended: what it makes will be found and removed."""
    return await (await connection.execute(SQL["enter_tenant"], {"tenant_id": tenant_id})).fetchone()


async def enter_ready(connection: Connection, tenant_id: str) -> DictRow:
    """As `enter`; refused with UNKNOWN_TENANT unless its creation is complete and it is not being deleted."""
    return ready(tenant_id, await enter(connection, tenant_id))


def ready(tenant_id: str, entered: DictRow | None) -> DictRow:
    """What `enter` gave; refused with UNKNOWN_TENANT unless the tenant's creation is complete and it is not being deleted."""
    row = _existing(tenant_id, entered)
    if row["deletion"]:
        raise MeshError(Reason.UNKNOWN_TENANT, f"tenant {tenant_id} is being deleted", facts={"tenant_id": tenant_id})
    if not row["ready"]:
        raise MeshError(
            Reason.UNKNOWN_TENANT,
            f"the creation of tenant {tenant_id} is not complete; repeat CreateTenant",
            facts={"tenant_id": tenant_id},
        )
    return row


def _existing(tenant_id: str, row: DictRow | None) -> DictRow:
    if row is None or row["settings"] is None:
        raise MeshError(
            Reason.UNKNOWN_TENANT,
            f"tenant {tenant_id} has not been created; an operator creates it with `spawnmesh tenant create {tenant_id}`",
            facts={"tenant_id": tenant_id},
        )
    return row


async def mark_ready(connection: Connection, tenant_id: str) -> None:
    """Opens the tenant for spawns."""
    await connection.execute(SQL["mark_tenant_ready"], {"tenant_id": tenant_id})


async def lock(connection: Connection, tenant_id: str) -> DictRow:
    """Name, settings and version of a tenant that was entered; they do not change until the transaction has ended."""
    row = await (await connection.execute(SQL["lock_tenant"], {"tenant_id": tenant_id})).fetchone()
    if row is None:
        raise RuntimeError("a tenant that was entered is gone")
    return row


async def update(connection: Connection, tenant_id: str, display_name: str, settings: dict[str, Any]) -> None:
    """Replaces name and settings, under the next version."""
    await connection.execute(SQL["update_tenant"], _columns(tenant_id, display_name, settings))


async def list_to_retain(connection: Connection) -> list[DictRow]:
    """At most 32 tenants whose ended sessions are to be looked at; in the scope of every tenant."""
    return await (await connection.execute(SQL["list_to_retain"])).fetchall()


async def claim_retention(connection: Connection, tenant_id: str, again_in: timedelta) -> DictRow | None:
    """The `settings` of a tenant whose ended sessions are to be looked at, for one sweep; it comes again after `again_in`."""
    values = {"tenant_id": tenant_id, "again_in": again_in}
    return await (await connection.execute(SQL["claim_retention"], values)).fetchone()


async def hasten_retention(connection: Connection, tenant_id: str) -> None:
    """The tenant's ended sessions are to be looked at again at once."""
    await connection.execute(SQL["hasten_retention"], {"tenant_id": tenant_id})


async def delete(connection: Connection, tenant_id: str) -> None:
    """Removes the tenant's own row."""
    await connection.execute(SQL["delete_tenant"], {"tenant_id": tenant_id})


@dataclass(frozen=True, slots=True)
class TenantsPage:
    """Tenants by id; and behind which id the next page begins, empty where there is none."""

    rows: list[DictRow]
    next_after_id: str


async def list_ready(connection: Connection, *, after_id: str, page_size: int) -> TenantsPage:
    """A page of every tenant but those whose creation is not complete, fewer where settings are large; in the scope of every tenant."""
    values = {"after_id": after_id, "page_size": page_size, "max_bytes": _MAX_LIST_BYTES}
    rows = await (await connection.execute(SQL["list_tenants"], values)).fetchall()
    return TenantsPage(rows, _next_after_id(rows, "tenant_id"))


def _next_after_id(rows: list[DictRow], id_column: str) -> str:
    return str(rows[-1][id_column]) if rows and rows[-1]["found_count"] > len(rows) else ""


def _agent(row: DictRow) -> AgentProfile:
    return AgentProfile(
        agent_id=row["agent_id"],
        system_prompt=row["system_prompt"],
        models=tuple(row["models"]),
        tools=tuple(row["tools"]),
        spawnable_agents=tuple(row["spawnable_agents"]),
        max_turn_count=row["max_turn_count"],
        context_token_budget=row["context_token_budget"],
        thinking=row["thinking"],
        mcp_servers=tuple(row["mcp_servers"]),
    )


def _values(tenant_id: str, agent: AgentProfile) -> dict[str, Any]:
    columns = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(agent).items()}
    return {**columns, "tenant_id": tenant_id}


async def put_agent(connection: Connection, tenant_id: str, agent: AgentProfile) -> None:
    """Inserts the agent, or replaces the one of its id."""
    await connection.execute(SQL["put_agent"], _values(tenant_id, agent))


async def insert_agent(connection: Connection, tenant_id: str, agent: AgentProfile) -> None:
    """Inserts the agent unless one of its id exists."""
    await connection.execute(SQL["insert_agent"], _values(tenant_id, agent))


async def delete_agent(connection: Connection, tenant_id: str, agent_id: str) -> None:
    """Deletes the agent, if there is one of that id."""
    await connection.execute(SQL["delete_agent"], {"tenant_id": tenant_id, "agent_id": agent_id})


async def find_agent(connection: Connection, tenant_id: str, agent_id: str) -> DictRow | None:
    """The row of the agent, if there is one of that id."""
    values = {"tenant_id": tenant_id, "agent_id": agent_id}
    return await (await connection.execute(SQL["get_agent"], values)).fetchone()


def known_agent(agent_id: str, row: DictRow | None) -> AgentProfile:
    """The agent of the row; refused with UNKNOWN_AGENT where there is none."""
    if row is None:
        raise MeshError(
            Reason.UNKNOWN_AGENT,
            f"this tenant has no agent {agent_id!r}; PutAgent writes one",
            facts={"agent_id": agent_id},
        )
    return _agent(row)


async def count_agents(connection: Connection, tenant_id: str, agent_id: str) -> tuple[int, bool]:
    """How many agents the tenant has, and whether this is one of them; neither changes while the tenant is locked."""
    values = {"tenant_id": tenant_id, "agent_id": agent_id}
    row = await (await connection.execute(SQL["count_agents"], values)).fetchone()
    return (int(row["held"]), bool(row["is_known"])) if row else (0, False)


@dataclass(frozen=True, slots=True)
class AgentsPage:
    """Agents by id; and behind which id the next page begins, empty where there is none."""

    agents: list[AgentProfile]
    next_after_id: str


async def list_agents(connection: Connection, tenant_id: str, *, after_id: str, page_size: int) -> AgentsPage:
    """A page of the tenant's agents; fewer where they are large, but one at least."""
    values = {"tenant_id": tenant_id, "after_id": after_id, "page_size": page_size, "max_bytes": _MAX_LIST_BYTES}
    rows = await (await connection.execute(SQL["list_agents"], values)).fetchall()
    return AgentsPage([_agent(row) for row in rows], _next_after_id(rows, "agent_id"))
