"""Runs and the queue they wait in."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from psycopg import AsyncCursor
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import EVERY_TENANT, Connection, Database

from spawnmesh_session.domain import Ending, RunState, storable
from spawnmesh_session.store.statements import SQL

# What may wait in the queue: a run, a spawn, a deleted session, a tenant that is being deleted, settings that peers are being told, an end that
# observers are to be told of.
RUN = "RUN"
SPAWN = "SPAWN"
DELETE = "DELETE"
PURGE = "PURGE"
SETTINGS = "SETTINGS"
END = "END"


@dataclass(frozen=True, slots=True)
class Page:
    """How much of what is due is taken at once: `limit` over all tenants, and `share` of each, less what it is `busy` with already."""

    limit: int
    share: int
    busy: Mapping[str, int] = field(default_factory=dict)


async def _one(connection: Connection, statement: str, **values: Any) -> DictRow | None:
    return await (await connection.execute(SQL[statement], values)).fetchone()


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run that is to be queued: `attempts_left` runners may take it, and it is to have ended `run_timeout` later."""

    run_id: str
    run_timeout: timedelta
    attempts_left: int


async def enqueue(connection: Connection, tenant_id: str, session_id: str, run: NewRun) -> None:
    """Inserts a QUEUED run with its place in the queue and its event, and wakes the runners when the transaction commits."""
    values = {**asdict(run), "tenant_id": tenant_id, "session_id": session_id}
    await connection.execute(SQL["queue_run"], values)


async def insert_dispatch(
    connection: Connection, tenant_id: str, kind: str, subject_id: str, due_in: timedelta
) -> None:
    """Puts something into the queue: it wants attention after `due_in`. What is there already is only moved."""
    values = {"tenant_id": tenant_id, "kind": kind, "subject_id": subject_id, "due_in": due_in}
    await connection.execute(SQL["insert_dispatch"], values)


async def delay_dispatch(connection: Connection, tenant_id: str, kind: str, subject_id: str, due_in: timedelta) -> None:
    """Moves something in the queue to `due_in` from now; what is not there stays away."""
    values = {"tenant_id": tenant_id, "kind": kind, "subject_id": subject_id, "due_in": due_in}
    await connection.execute(SQL["delay_dispatch"], values)


async def delete_dispatch(connection: Connection, tenant_id: str, kind: str, subject_id: str) -> None:
    """Takes something out of the queue."""
    await connection.execute(SQL["delete_dispatch"], {"tenant_id": tenant_id, "kind": kind, "subject_id": subject_id})


async def insert_deletions(
    connection: Connection, tenant_id: str, session_ids: Sequence[str], due_in: timedelta
) -> None:
    """Puts deleted sessions into the queue, as `insert_dispatch` does."""
    values = {"tenant_id": tenant_id, "session_ids": list(session_ids), "due_in": due_in}
    await connection.execute(SQL["insert_deletions"], values)


async def delete_many_dispatch(connection: Connection, tenant_id: str, kind: str, subject_ids: Sequence[str]) -> None:
    """Takes several of a kind out of the queue."""
    values = {"tenant_id": tenant_id, "kind": kind, "subject_ids": list(subject_ids)}
    await connection.execute(SQL["delete_many_dispatch"], values)


async def get(connection: Connection, tenant_id: str, run_id: str) -> DictRow:
    """The run; RUN_LEASE_LOST where it was deleted."""
    return existing(run_id, await _one(connection, "get_run", tenant_id=tenant_id, run_id=run_id))


def existing(run_id: str, row: DictRow | None) -> DictRow:
    """The run of the row; RUN_LEASE_LOST where there is none."""
    if row is None:
        raise _deleted(run_id)
    return row


async def lock(connection: Connection, tenant_id: str, run_id: str) -> DictRow:
    """The run, locked until the transaction ends; RUN_LEASE_LOST where it was deleted."""
    return existing(run_id, await _one(connection, "lock_run", tenant_id=tenant_id, run_id=run_id))


async def lock_with_sessions(
    connection: Connection, tenant_id: str, run_id: str
) -> tuple[DictRow | None, DictRow, DictRow]:
    """The parent of the run's session, if any, the session, and the run, locked in this order until the transaction ends, in one round trip.

    RUN_LEASE_LOST where the run was deleted, as it is with its session; NOT_FOUND where the session's parent was.
    """
    values = {"tenant_id": tenant_id, "run_id": run_id}
    names = ("lock_parent_of_run", "lock_session_of_run", "lock_run")
    locked = [await connection.execute(SQL[name], values) for name in names]
    parent, session, run = [await cursor.fetchone() for cursor in locked]
    if session is None or run is None:
        raise _deleted(run_id)
    if parent is None and session["parent_session_id"]:
        raise not_found("session", session["parent_session_id"])
    return parent, session, run


def _deleted(run_id: str) -> MeshError:
    """Only tokens of ours and rows of ours name runs, so one that is not there was there: its runner is to stop."""
    return MeshError(
        Reason.RUN_LEASE_LOST,
        f"run {run_id} was deleted with its session; stop working on it",
        facts={"run_id": run_id, "state": "DELETED"},
    )


async def lock_live(connection: Connection, tenant_id: str, session_id: str) -> DictRow | None:
    """The session's live run, locked, if it has one."""
    return await _one(connection, "lock_live_run", tenant_id=tenant_id, session_id=session_id)


@dataclass(frozen=True, slots=True)
class Taken:
    """Runs taken from the queue, each with its tenant. `others_took`: another call was just taking some, so that it is worth looking again."""

    runs: list[tuple[str, str]]
    others_took: bool


async def take_claimable(database: Database, limit: int, lease_ttl: timedelta, runtimes: Sequence[str]) -> Taken:
    """Runs of these runtimes whose time has come, each leased with one attempt used; in one round trip, a transaction of its own."""
    values = {"limit": limit, "lease_ttl": lease_ttl, "runtimes": list(runtimes)}
    [row] = await database.call(EVERY_TENANT, SQL["take_claimable_runs"], values)
    return Taken(list(zip(row["tenant_ids"] or (), row["run_ids"] or (), strict=True)), row["others_took"])


async def take_lost(connection: Connection, page: Page, again_in: timedelta) -> list[DictRow]:
    """Ids of runs that nobody can finish; one that is not ended comes again after `again_in`. In the scope of every tenant."""
    values = {"limit": page.limit, "share": page.share, "again_in": again_in}
    return await (await connection.execute(SQL["take_lost_runs"], values)).fetchall()


async def is_lost(connection: Connection, tenant_id: str, run_id: str, taken_due_time: datetime) -> bool:
    """Whether a run that `take_lost` gave, which the caller has locked since, was kept or given back by nobody meanwhile."""
    row = await _one(connection, "is_lost_run", tenant_id=tenant_id, run_id=run_id, taken_due_time=taken_due_time)
    return row is not None


async def take_overdue(connection: Connection, kind: str, page: Page, again_in: timedelta) -> list[DictRow]:
    """A page of the kind, but RUN, whose time has come; they come again after `again_in`. In the scope of every tenant."""
    values = {
        "kind": kind,
        "limit": page.limit,
        "share": page.share,
        "busy": Jsonb(dict(page.busy)),
        "again_in": again_in,
    }
    return await (await connection.execute(SQL["take_overdue"], values)).fetchall()


async def revive_jobs(connection: Connection, silent_for: timedelta) -> int:
    """Gives jobs back to the queue whose worker has not been heard of for that long; returns how many. Serves all tenants."""
    return (await connection.execute(SQL["revive_jobs"], {"silent_for": silent_for})).rowcount


async def count_backlog(connection: Connection) -> dict[str, int]:
    """How much of each kind should have been seen to by now. In the scope of every tenant."""
    rows = await (await connection.execute(SQL["count_backlog"])).fetchall()
    return {row["kind"]: row["waiting"] for row in rows}


async def count_live(connection: Connection) -> dict[str, int]:
    """How many runs are `waiting` for a runner, and `held` by one. In the scope of every tenant."""
    row = await (await connection.execute(SQL["count_live_runs"])).fetchone()
    return dict(row or {})


async def claim(
    connection: Connection, tenant_id: str, run_id: str, *, runner_id: str, lease_ttl: timedelta
) -> tuple[DictRow, DictRow] | None:
    """The run's session, locked until the transaction ends, with its `agent`; and the run: RUNNING with the session's next epoch and a lease.

    The run says whether it `was_held` until then. In one round trip.

    None where the run has ended meanwhile, RUN_LEASE_LOST where it or its session was deleted.
    """
    values = {"tenant_id": tenant_id, "run_id": run_id, "runner_id": runner_id, "lease_ttl": lease_ttl}
    names = ("lock_session_of_run", "claim_run", "get_claimed")
    asked = [await connection.execute(SQL[name], values) for name in names]
    locked, run, session = [await cursor.fetchone() for cursor in asked]
    if locked is None or session is None:
        raise _deleted(run_id)
    if run is None:
        await delete_dispatch(connection, tenant_id, RUN, run_id)
        return None
    return session, run


async def extend_lease(connection: Connection, tenant_id: str, run_id: str, lease_ttl: timedelta) -> datetime | None:
    """Lets the lease run for `lease_ttl` from the database's now; returns its end."""
    row = await _one(connection, "lease_dispatch", tenant_id=tenant_id, run_id=run_id, lease_ttl=lease_ttl)
    return row["due_time"] if row else None


async def give_back(connection: Connection, tenant_id: str, run_id: str) -> None:
    """Undoes `take_claimable` for a run that was not claimed after all."""
    await connection.execute(SQL["requeue_dispatch"], {"tenant_id": tenant_id, "run_id": run_id})
    await connection.execute(SQL["notify_queue"])


async def list_killed(connection: Connection, tenant_id: str, session_ids: list[str]) -> list[DictRow]:
    """Run, session and epoch of the sessions' killed runs that a runner held."""
    values = {"tenant_id": tenant_id, "session_ids": session_ids}
    return await (await connection.execute(SQL["list_killed_runs"], values)).fetchall()


async def set_state(
    connection: Connection,
    tenant_id: str,
    run_id: str,
    epoch: int,
    state: RunState,
    *,
    revision_count: int = 0,
    superseded_entry_id: str = "",
) -> DictRow | None:
    """Between RUNNING and FINALIZING at this epoch; None where the run is in neither, has another epoch, or is being ended with a draft. A draft
    that is superseded is never its answer."""
    return await _one(
        connection,
        "set_run_state",
        tenant_id=tenant_id,
        run_id=run_id,
        epoch=epoch,
        state=state.value,
        revision_count=revision_count,
        superseded_entry_id=superseded_entry_id,
    )


async def begin_finalizing(database: Database, tenant_id: str, run_id: str, epoch: int, entry_id: str) -> DictRow:
    """The run: FINALIZING with the draft and `has_begun`, where it is held at this epoch, nothing is being made its answer and no message waits
    for it; else as it was, but that a draft which was being made its answer is superseded from then on. With its session's `agent_id`, how
    many messages are `waiting`, and whether its tenant `masks_secrets`. In one round trip, a transaction of its own.

    RUN_LEASE_LOST where the run was deleted.
    """
    values = {"run_id": run_id, "epoch": epoch, "entry_id": entry_id}
    [row] = await database.call(tenant_id, SQL["begin_finalizing"], values)
    return existing(run_id, row if row["run_id"] else None)


async def decide(database: Database, tenant_id: str, run_id: str, epoch: int, entry_id: str, text_key: str) -> DictRow:
    """The run: FINALIZING with the draft that is being made its answer, and the key of its text; or, with messages `waiting` or for a draft that
    is superseded, RUNNING again; where it is not held at this epoch, or that was decided before, as it was. In one round trip, a transaction of
    its own.

    RUN_LEASE_LOST where the run was deleted.
    """
    values = {"run_id": run_id, "epoch": epoch, "entry_id": entry_id, "text_key": text_key}
    [row] = await database.call(tenant_id, SQL["decide_run"], values)
    return existing(run_id, row if row["run_id"] else None)


async def withdraw_decision(connection: Connection, tenant_id: str, run_id: str, epoch: int, entry_id: str) -> None:
    """The draft is not being made the answer any more, and the run is RUNNING; nothing where it is not held at the epoch."""
    values = {"tenant_id": tenant_id, "run_id": run_id, "epoch": epoch, "entry_id": entry_id}
    await connection.execute(SQL["withdraw_decision"], values)


async def requeue(connection: Connection, tenant_id: str, run_id: str, epoch: int) -> DictRow | None:
    """Back to QUEUED from this epoch, not counted as an attempt; None where it is not held at this epoch."""
    run = await _one(connection, "requeue_run", tenant_id=tenant_id, run_id=run_id, epoch=epoch)
    if run is not None:
        await give_back(connection, tenant_id, run_id)
    return run


async def begin_end(
    connection: Connection, tenant_id: str, run_id: str, ending: Ending, *, epoch: int | None = None
) -> AsyncCursor[DictRow]:
    """Sets the terminal state, once, takes the run out of the queue and writes its event. The run, to be fetched later; no row where it has a
    terminal state already, or is not held at `epoch`. Its session is locked."""
    values = {
        "tenant_id": tenant_id,
        "run_id": run_id,
        "epoch": epoch,
        "state": ending.state.value,
        "draft_entry_id": ending.draft_entry_id,
        "result_text": storable(ending.result_text),
        "error_reason": ending.error_reason,
        "error_message": storable(ending.error_message),
        "usage": None if ending.usage is None else Jsonb(ending.usage),
    }
    return await connection.execute(SQL["end_run"], values)
