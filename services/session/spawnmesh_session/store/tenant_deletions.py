"""Deletions of tenants: how far each is, and what it removes of this service's own rows."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from psycopg.rows import DictRow
from spawnmesh_postgres.database import Connection

from spawnmesh_session.domain import DeletionStep
from spawnmesh_session.store.statements import SQL


async def _one(connection: Connection, statement: str, **values: Any) -> DictRow | None:
    return await (await connection.execute(SQL[statement], values)).fetchone()


async def begin(connection: Connection, tenant_id: str) -> bool:
    """Makes the deletion exist, once every transaction that has begun something in the tenant has ended; False where it exists."""
    await connection.execute(SQL["bar_tenant"], {"tenant_id": tenant_id})
    return await _one(connection, "insert_deletion", tenant_id=tenant_id) is not None


async def get(connection: Connection, tenant_id: str) -> DictRow | None:
    """The deletion, if there is one."""
    return await _one(connection, "get_deletion", tenant_id=tenant_id)


async def lock(connection: Connection, deletion: DictRow) -> bool:
    """Whether the deletion is at this step still, which it then is until the transaction ends; not where another pass has gone on."""
    values = {name: deletion[name] for name in ("tenant_id", "request_time", "step")}
    return await _one(connection, "lock_deletion", **values) is not None


async def forget(connection: Connection, tenant_id: str) -> None:
    """Removes the report of a deletion that is done."""
    await connection.execute(SQL["forget_deletion"], {"tenant_id": tenant_id})


async def report(
    connection: Connection,
    deletion: DictRow,
    *,
    killed_runs: int = 0,
    sessions: int = 0,
    transcripts: int = 0,
    objects: int = 0,
    settle_in: timedelta = timedelta(0),
) -> None:
    """Adds to the counts, also of one that is done; nothing is settled before `settle_in` is over."""
    values = {
        "tenant_id": deletion["tenant_id"],
        "request_time": deletion["request_time"],
        "killed_run_count": killed_runs,
        "deleted_session_count": sessions,
        "deleted_transcript_count": transcripts,
        "deleted_object_count": objects,
        "settle_in": settle_in,
    }
    await connection.execute(SQL["report_deletion"], values)


async def stall(connection: Connection, deletion: DictRow, stalled_by: str) -> None:
    """Records what stopped a try, unless the deletion is done."""
    values = {"tenant_id": deletion["tenant_id"], "request_time": deletion["request_time"], "stalled_by": stalled_by}
    await connection.execute(SQL["stall_deletion"], values)


async def step(connection: Connection, tenant_id: str, following: DeletionStep) -> None:
    """A deletion that is locked goes on to the step that follows."""
    await connection.execute(SQL["step_deletion"], {"tenant_id": tenant_id, "to_step": following.value})


async def is_settled(connection: Connection, tenant_id: str) -> bool:
    """Whether what was under way when the deletion began has had its time."""
    return await _one(connection, "is_settled", tenant_id=tenant_id) is not None


async def live_roots(connection: Connection, tenant_id: str, limit: int) -> list[str]:
    """Sessions that live and whose parents do not."""
    rows = await connection.execute(SQL["list_live_roots"], {"tenant_id": tenant_id, "limit": limit})
    return [row["session_id"] for row in await rows.fetchall()]


async def has_clearing(connection: Connection, tenant_id: str) -> bool:
    """Whether the sweep may be removing, a spawn be making, or somebody be telling of settings, something at the peers."""
    return await _one(connection, "has_clearing", tenant_id=tenant_id) is not None


async def drop_jobs(connection: Connection, tenant_id: str) -> int:
    """Drops the tenant's jobs that nobody works on, and ends that wait to be told; returns how many are, or may be, being worked on."""
    await connection.execute(SQL["drop_waiting_jobs"], {"tenant_id": tenant_id})
    ends = await connection.execute(SQL["drop_ends"], {"tenant_id": tenant_id})
    row = await _one(connection, "count_jobs", tenant_id=tenant_id)
    return ends.rowcount + (int(row["working"]) if row else 0)


async def any_sessions(connection: Connection, tenant_id: str, limit: int) -> list[str]:
    """Ids of sessions in any state, deleted ones too."""
    rows = await connection.execute(SQL["list_any_sessions"], {"tenant_id": tenant_id, "limit": limit})
    return [row["session_id"] for row in await rows.fetchall()]


async def purge_sessions(connection: Connection, tenant_id: str, session_ids: Sequence[str]) -> int:
    """Removes the rows, with their runs, messages and events; returns how many sessions."""
    values = {"tenant_id": tenant_id, "session_ids": list(session_ids)}
    return (await connection.execute(SQL["purge_sessions"], values)).rowcount


async def purge_rest(connection: Connection, tenant_id: str) -> None:
    """Removes the tenant's agents and what it has in the queue, but the deletion itself."""
    for statement in ("purge_agents", "purge_dispatch"):
        await connection.execute(SQL[statement], {"tenant_id": tenant_id})
