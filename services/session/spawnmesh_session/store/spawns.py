"""How a spawn begins: at once where nothing stands against it, else judged by what is asked in one round trip."""

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_session.domain import Parent, SessionState, Spawn, SpawnLimits
from spawnmesh_session.store import tenants
from spawnmesh_session.store.statements import SQL

_OF_TENANT = ("enter_tenant", "get_agent")
_OF_PARENT = ("lock_session", "get_agent_of_session", "count_live_children")
_OF_RUN = ("get_run",)
_OF_QUEUE = ("count_waiting", "find_spawn")

_COLUMNS = (
    "session_id",
    "request_id",
    "agent_id",
    "label",
    "model",
    "mode",
    "context",
    "cleanup",
    "runtime",
    "task_hash",
    "traceparent",
    "thinking",
)


@dataclass(frozen=True, slots=True)
class Seen:
    """The tenant's settings; the parent, locked; its run that spawns, None where it was deleted; the tenant's waiting runs and spawns under way,
    exact while the queue is locked; and what `find_spawn` finds. Where that is something the parent is None: who asks is only answered again.
    """

    settings: dict[str, Any]
    parent: Parent | None
    parent_run: DictRow | None
    waiting_count: int
    known: DictRow | None


async def begin(database: Database, tenant_id: str, spawn: Spawn, *, due_in: timedelta, margin: int) -> bool:
    """Inserts the session of a spawn that no parent has to allow, as `sessions.insert` does, in one call and a transaction of its own.

    False where that was not done: `look` tells what stands against it. It may be that the tenant's queue has no more than `margin` places left.
    """
    columns = asdict(spawn)
    session = {name: columns[name] for name in _COLUMNS}
    session["payload_hash"] = spawn.payload_hash.hex()
    values = {
        "session": Jsonb(session),
        "run_timeout": spawn.run_timeout,
        "due_in": due_in,
        "max_queued_run_count": SpawnLimits().max_queued_run_count,
        "margin": margin,
    }
    [row] = await database.call(tenant_id, SQL["begin_spawn"], values)
    return bool(row["begun"])


async def look(connection: Connection, tenant_id: str, spawn: Spawn) -> Seen:
    """Enters the tenant and locks the parent, if there is one, in this order; nobody's deletion begins until the transaction ends.

    The request_id is looked for last: what a call at the same time has just taken must not refuse this one, which has the same answer.
    Refused with UNKNOWN_TENANT; and unless the request_id is known, with UNKNOWN_AGENT, and NOT_FOUND where there is no such parent.
    """
    names = (
        *_OF_TENANT,
        *(_OF_PARENT if spawn.parent_session_id else ()),
        *(_OF_RUN if spawn.parent_run_id else ()),
        *_OF_QUEUE,
    )
    values = {
        "tenant_id": tenant_id,
        "agent_id": spawn.agent_id,
        "session_id": spawn.parent_session_id,
        "run_id": spawn.parent_run_id,
        "request_id": spawn.request_id,
        "spawner": spawn.spawner,
    }
    asked = {name: await connection.execute(SQL[name], values) for name in names}
    rows = {name: await cursor.fetchone() for name, cursor in asked.items()}
    tenant = tenants.ready(tenant_id, rows["enter_tenant"])
    known, parent = rows["find_spawn"], None
    if known is None:
        tenants.known_agent(spawn.agent_id, rows["get_agent"])
        parent = _parent(spawn, rows)
    return Seen(tenant["settings"], parent, rows.get("get_run"), _count(rows["count_waiting"]), known)


async def look_again(connection: Connection, tenant_id: str, spawn: Spawn) -> tuple[int, DictRow | None]:
    """As `look` counts and finds, once nobody else fills the tenant's queue until the transaction ends."""
    values = {"tenant_id": tenant_id, "request_id": spawn.request_id, "spawner": spawn.spawner}
    asked = [await connection.execute(SQL[name], values) for name in ("lock_queue", *_OF_QUEUE)]
    return _count(await asked[1].fetchone()), await asked[2].fetchone()


async def count_waiting(connection: Connection, tenant_id: str, *, margin: int, limit: int) -> int:
    """The tenant's waiting runs and spawns under way; exact, and nobody else fills the queue until the transaction ends, where no more than
    `margin` places are left."""
    values = {"tenant_id": tenant_id}
    waiting = _count(await (await connection.execute(SQL["count_waiting"], values)).fetchone())
    if waiting + margin <= limit:
        return waiting
    await connection.execute(SQL["lock_queue"], values)
    return _count(await (await connection.execute(SQL["count_waiting"], values)).fetchone())


def _count(row: DictRow | None) -> int:
    return int(row["waiting"]) if row else 0


def _parent(spawn: Spawn, rows: dict[str, DictRow | None]) -> Parent | None:
    if not spawn.parent_session_id:
        return None
    parent, counted = rows["lock_session"], rows["count_live_children"]
    if parent is None or counted is None:
        raise not_found("session", spawn.parent_session_id)
    return Parent(
        session_id=parent["session_id"],
        state=SessionState(parent["state"]),
        agent=tenants.known_agent(parent["agent_id"], rows["get_agent_of_session"]),
        ancestor_ids=tuple(parent["ancestor_ids"]),
        live_child_count=counted["live"],
        spawn_count=parent["spawn_count"],
    )
