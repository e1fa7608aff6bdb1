"""Spawns: how a session begins, becomes active, or fails."""

from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from psycopg.types.json import Jsonb
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.rows import Row
from spawnmesh_postgres.statements import load_statements

from spawnmesh_session.domain.agents import require_agent
from spawnmesh_session.domain.enabled_hooks import EnabledHooks
from spawnmesh_session.domain.runs import QUEUE_MARGIN, QueuedRun, Run
from spawnmesh_session.domain.sessions import Session
from spawnmesh_session.domain.spawns import KnownSpawn, SpawnFailure, SpawnParent, SpawnSpec
from spawnmesh_session.domain.tenants import require_ready
from spawnmesh_session.store import budgets, events, runs, tenants
from spawnmesh_session.store.enabled_hooks import send_enabled_hooks
from spawnmesh_session.store.rows import PendingRow, agent_of, failure_of, run_of, session_of

_SQL = load_statements(__name__)

_OF_TENANT = ("get_agent_of_spawn",)
_OF_PARENT = ("lock_parent_of_spawn", "get_agent_of_parent", "count_live_children")
_OF_RUN = ("get_run_of_parent",)
_OF_FORK = ("find_fork_source",)


def _columns(tenant_id: str, spec: SpawnSpec) -> dict[str, Any]:
    return {
        **{name: value for name, value in asdict(spec).items() if name != "budget"},
        "fork_source": spec.fork_source,
        "tenant_id": tenant_id,
        "metadata": Jsonb(spec.metadata),
    }


async def begin_spawn(
    database: Database, tenant_id: str, spec: SpawnSpec, *, due_in: timedelta
) -> EnabledHooks | None:
    """Insert the session of a plain spawn in one round trip, which is a transaction of its own.

    Return the tenant's hooks. Return None if something may refuse the spawn, for example if the
    tenant's queue has fewer than QUEUE_MARGIN places left; `read_spawn_context` returns the facts.
    """
    values = {**_columns(tenant_id, spec), "due_in": due_in, "margin": QUEUE_MARGIN}
    async with database.pipelined(tenant_id) as connection:
        await tenants.join_beginners(connection, tenant_id)
        begun = await connection.execute(_SQL["begin_spawn"], values)
        hooks = await send_enabled_hooks(connection, tenant_id)
    return await hooks.fetch() if await begun.fetchone() else None


async def insert_session(
    connection: Connection,
    tenant_id: str,
    spec: SpawnSpec,
    parent: SpawnParent | None,
    *,
    agent_version: int,
    due_in: timedelta,
) -> PendingRow[str]:
    """Insert the session as PROVISIONING with a deadline, as a child of its locked parent, and its
    budget. The watchers of the parent wake when the transaction commits.

    The pending row is its id. There is no row, and nothing is done, if the request_id is known.
    """
    budgets_of_parent = parent.budget_session_ids if parent else ()
    values = {
        **_columns(tenant_id, spec),
        "ancestor_ids": [*parent.ancestor_ids, parent.session_id] if parent else [],
        "budget_session_ids": [*budgets_of_parent, *([spec.session_id] if spec.budget else [])],
        "due_in": due_in,
        "agent_version": agent_version,
    }
    cursor = await connection.execute(_SQL["insert_session"], values)
    if parent is not None:
        await events.notify_watchers(connection, tenant_id, parent.session_id)
    if spec.budget is not None:
        await budgets.insert_budget(connection, tenant_id, spec.session_id, spec.budget)
    return PendingRow(cursor, lambda row: str(row["session_id"]))


@dataclass(frozen=True, slots=True)
class SpawnContext:
    """The facts that decide about a spawn.

    `parent` is locked. `parent_run` is None if it was deleted. `waiting_count` counts the tenant's
    waiting runs and spawns in progress; it is exact while the queue is locked. If `known` is set,
    the request_id is known, `parent` is None and `agent_version` is 0.
    """

    settings: dict[str, Any]
    parent: SpawnParent | None
    parent_run: Run | None
    waiting_count: int
    known: KnownSpawn | None
    agent_version: int
    hooks: EnabledHooks


async def read_spawn_context(connection: Connection, tenant_id: str, spec: SpawnSpec) -> SpawnContext:
    """Enter the tenant, lock the parent, if any, and read the facts, in one round trip.

    The request_id is read last, so that a repeat at the same time gets the answer of the first
    call and no refusal. Raise UNKNOWN_TENANT; and, unless the request_id is known, UNKNOWN_AGENT,
    and NOT_FOUND if the parent, or the session to fork, does not exist.
    """
    names = (
        *_OF_TENANT,
        *(_OF_PARENT if spec.parent_session_id else ()),
        *(_OF_RUN if spec.parent_run_id else ()),
        *(_OF_FORK if spec.fork_seq else ()),
    )
    values = {
        "tenant_id": tenant_id,
        "agent_id": spec.agent_id,
        "parent_session_id": spec.parent_session_id,
        "parent_run_id": spec.parent_run_id,
        "request_id": spec.request_id,
        "spawner": spec.spawner,
        "fork_source": spec.fork_source,
    }
    entered = await tenants.send_enter(connection, tenant_id)
    cursors = {name: await connection.execute(_SQL[name], values) for name in names}
    waiting = await runs.send_count_of_waiting_runs(connection, tenant_id)
    find = await connection.execute(_SQL["find_spawn"], values)
    hooks = await send_enabled_hooks(connection, tenant_id)
    rows = {name: await cursor.fetchone() for name, cursor in cursors.items()}
    tenant = require_ready(tenant_id, await entered.fetch())
    known, parent, agent_version = _known(await find.fetchone()), None, 0
    if known is None:
        agent = rows["get_agent_of_spawn"]
        agent_version = require_agent(spec.agent_id, agent_of(agent) if agent else None).version
        parent = _parent(spec, rows)
        if spec.fork_source and spec.fork_seq and rows["find_fork_source"] is None:
            raise not_found("session", spec.fork_source)
    run = rows.get("get_run_of_parent")
    return SpawnContext(
        settings=tenant.settings,
        parent=parent,
        parent_run=run_of(run) if run else None,
        waiting_count=await waiting.fetch() or 0,
        known=known,
        agent_version=agent_version,
        hooks=await hooks.fetch(),
    )


async def recount_waiting_runs(
    connection: Connection, tenant_id: str, spec: SpawnSpec
) -> tuple[int, KnownSpawn | None]:
    """Lock the tenant's queue; return the exact count and the spawn with the request_id."""
    values = {"tenant_id": tenant_id, "request_id": spec.request_id, "spawner": spec.spawner}
    await runs.lock_queue(connection, tenant_id)
    waiting = await runs.send_count_of_waiting_runs(connection, tenant_id)
    find = await connection.execute(_SQL["find_spawn"], values)
    return await waiting.fetch() or 0, _known(await find.fetchone())


async def find_spawn(connection: Connection, tenant_id: str, spec: SpawnSpec) -> KnownSpawn | None:
    """Return the spawn with this request_id by the same spawner, also a deleted one."""
    values = {"tenant_id": tenant_id, "request_id": spec.request_id, "spawner": spec.spawner}
    return _known(await (await connection.execute(_SQL["find_spawn"], values)).fetchone())


async def find_spawn_of_client(connection: Connection, tenant_id: str, request_id: str) -> KnownSpawn | None:
    """Return the spawn with this request_id by a client or a schedule, also a deleted one."""
    values = {"tenant_id": tenant_id, "request_id": request_id, "spawner": ""}
    return _known(await (await connection.execute(_SQL["find_spawn"], values)).fetchone())


async def get_spawn(connection: Connection, tenant_id: str, session_id: str) -> KnownSpawn | None:
    """Return the spawn of this session, also of a deleted one. Return None if it is forgotten."""
    values = {"tenant_id": tenant_id, "session_id": session_id}
    return _known(await (await connection.execute(_SQL["get_spawn"], values)).fetchone())


async def pass_gate(database: Database, tenant_id: str, session_id: str) -> bool:
    """Record, in a transaction of its own, that the gate hooks allowed the spawn.

    Return False if the session is no longer PROVISIONING.
    """
    values = {"tenant_id": tenant_id, "session_id": session_id}
    async with database.pipelined(tenant_id) as connection:
        passed = await connection.execute(_SQL["pass_gate"], values)
    return await passed.fetchone() is not None


async def activate_session(
    database: Database,
    tenant_id: str,
    session_id: str,
    receipt: dict[str, Any] | None,
    run: QueuedRun,
    jobs: Jsonb,
) -> Session | None:
    """PROVISIONING -> ACTIVE: queue the first run and the jobs, in one transaction and round trip.

    Return the session with its run; None, with nothing done, if it is no longer PROVISIONING.
    """
    values = {
        "tenant_id": tenant_id,
        "session_id": session_id,
        "receipt": Jsonb(receipt) if receipt else None,
        "run_id": run.run_id,
        "jobs": jobs,
    }
    async with database.pipelined(tenant_id) as connection:
        activated = await connection.execute(_SQL["activate_session"], values)
        queued = await runs.queue_run(connection, tenant_id, session_id, run)
        await connection.execute(_SQL["enqueue_jobs_of_run"], values)
    row = await activated.fetchone()
    return None if row is None else replace(session_of(row), latest_run=await queued.fetch())


async def fail_spawn(connection: Connection, tenant_id: str, session_id: str, failure: SpawnFailure) -> None:
    """PROVISIONING -> SPAWN_FAILED. Do nothing if the session is no longer PROVISIONING."""
    values = {
        "tenant_id": tenant_id,
        "session_id": session_id,
        "failure": Jsonb(asdict(failure)),
        "is_final": failure.is_final,
    }
    await connection.execute(_SQL["fail_spawn"], values)


def _known(row: Row | None) -> KnownSpawn | None:
    if row is None:
        return None
    return KnownSpawn(
        session_id=row["session_id"],
        state=row["state"],
        payload_hash=bytes(row["payload_hash"]),
        failure=failure_of(row["failure"]),
        deleted=row["deleted"],
    )


def _parent(spec: SpawnSpec, rows: Row) -> SpawnParent | None:
    if not spec.parent_session_id:
        return None
    parent, counted = rows["lock_parent_of_spawn"], rows["count_live_children"]
    agent = rows["get_agent_of_parent"]
    if parent is None or counted is None:
        raise not_found("session", spec.parent_session_id)
    return SpawnParent(
        session_id=parent["session_id"],
        state=parent["state"],
        agent=require_agent(parent["agent_id"], agent_of(agent) if agent else None),
        ancestor_ids=tuple(parent["ancestor_ids"]),
        live_child_count=counted["live"],
        spawn_count=parent["spawn_count"],
        budget_session_ids=tuple(parent["budget_session_ids"]),
    )
