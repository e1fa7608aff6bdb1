"""Runs: from their queueing to their terminal state.

`store.run_queue` takes due runs for a claim and holds their leases; `store.drafts` finalizes runs.
"""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from psycopg.types.json import Jsonb
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_session.domain.agents import AgentProfile
from spawnmesh_session.domain.enabled_hooks import EnabledHooks
from spawnmesh_session.domain.runs import (
    NO_DELAY,
    TERMINAL_RUN_STATES,
    NewDelay,
    QueuedRun,
    Run,
    RunOutcome,
    has_queue_margin,
    require_run,
    run_deleted,
)
from spawnmesh_session.domain.sessions import Session
from spawnmesh_session.domain.text import without_nul
from spawnmesh_session.store import events, revoked_tokens, run_queue
from spawnmesh_session.store.enabled_hooks import send_enabled_hooks
from spawnmesh_session.store.rows import PendingRow, agent_of, run_of, session_of
from spawnmesh_session.store.run_queue import TakenRun

_SQL = load_statements(__name__)

CHANGE_CHANNEL = "run_changed"
"""The channel of changes that a run's runner must know at once; see `change_payloads`."""


async def queue_run(
    connection: Connection, tenant_id: str, session_id: str, run: QueuedRun
) -> PendingRow[Run]:
    """Insert a QUEUED run of an active session with its queue entry and event.

    Runners wake when the transaction commits. There is no row if the session is not active.
    """
    values = {**asdict(run), "tenant_id": tenant_id, "session_id": session_id}
    queued = PendingRow(await connection.execute(_SQL["queue_run"], values), run_of)
    await connection.execute(_SQL["notify_of_queued_run"], values)
    return queued


async def send_count_of_waiting_runs(connection: Connection, tenant_id: str) -> PendingRow[int]:
    """Send the count of the tenant's waiting runs and spawns in progress.

    The count is exact while the queue is locked.
    """
    cursor = await connection.execute(_SQL["count_waiting_runs"], {"tenant_id": tenant_id})
    return PendingRow(cursor, lambda row: int(row["waiting"]))


async def lock_queue(connection: Connection, tenant_id: str) -> None:
    """Lock the tenant's queue against other transactions that add to it near its limit."""
    await connection.execute(_SQL["lock_queue"], {"tenant_id": tenant_id})


async def count_waiting_runs(connection: Connection, tenant_id: str, *, limit: int) -> int:
    """Return the number of the tenant's waiting runs and spawns in progress.

    If fewer than QUEUE_MARGIN places of `limit` are left, lock the queue and return the exact
    number.
    """
    waiting_count = await (await send_count_of_waiting_runs(connection, tenant_id)).fetch() or 0
    if has_queue_margin(waiting_count, limit):
        return waiting_count
    await lock_queue(connection, tenant_id)
    return await (await send_count_of_waiting_runs(connection, tenant_id)).fetch() or 0


async def get_run(connection: Connection, tenant_id: str, run_id: str) -> Run:
    """Return the run. Raise RUN_LEASE_LOST if it was deleted."""
    values = {"tenant_id": tenant_id, "run_id": run_id}
    row = await (await connection.execute(_SQL["get_run"], values)).fetchone()
    return require_run(run_id, run_of(row) if row else None)


async def lock_run(connection: Connection, tenant_id: str, run_id: str) -> Run:
    """Lock the run until the transaction ends. Raise RUN_LEASE_LOST if it was deleted."""
    return require_run(run_id, await (await send_lock(connection, tenant_id, run_id)).fetch())


async def send_lock(connection: Connection, tenant_id: str, run_id: str) -> PendingRow[Run]:
    """Send the lock of the run; in a pipeline this takes no round trip."""
    values = {"tenant_id": tenant_id, "run_id": run_id}
    return PendingRow(await connection.execute(_SQL["lock_run"], values), run_of)


async def lock_live_run(connection: Connection, tenant_id: str, session_id: str) -> Run | None:
    """Lock and return the session's live run, if it has one."""
    values = {"tenant_id": tenant_id, "session_id": session_id}
    row = await (await connection.execute(_SQL["lock_live_run"], values)).fetchone()
    return run_of(row) if row else None


async def find_run(connection: Connection, tenant_id: str, session_id: str, run_id: str) -> Run:
    """Return a run of the session. Raise NOT_FOUND if it has no such run."""
    values = {"tenant_id": tenant_id, "run_id": run_id}
    row = await (await connection.execute(_SQL["get_run"], values)).fetchone()
    if row is None or row["session_id"] != session_id:
        raise not_found("run", run_id)
    return run_of(row)


async def read_time(connection: Connection) -> datetime:
    """Return the time of the database, for a write of a transaction that has its locks.

    A write on a Citus cluster cannot ask for the time itself.
    """
    [clock] = await (await connection.execute(_SQL["read_clock"])).fetchall()
    now: datetime = clock["read_time"]
    return now


async def interrupt_run(connection: Connection, tenant_id: str, run_id: str) -> Run:
    """Let no draft of the locked run be decided any more, and return it.

    A run that was interrupted before keeps the time of that.
    """
    now = await read_time(connection)
    values = {"tenant_id": tenant_id, "run_id": run_id, "interrupt_time": now}
    row = await (await connection.execute(_SQL["interrupt_run"], values)).fetchone()
    return require_run(run_id, run_of(row) if row else None)


def change_payloads(runner_id: str, tenants: Collection[str]) -> list[str]:
    """Return the payloads of a runner that serves these tenants, or all if there are none."""
    return [f"{tenant_id}:{runner_id}" for tenant_id in tenants or ("*",)]


async def notify_runner(connection: Connection, tenant_id: str, run: Run) -> None:
    """Tell the run's runner, when the transaction commits, that it must look at its run."""
    values = {"tenant_id": tenant_id, "runner_id": run.runner_id}
    await connection.execute(_SQL["notify_runner"], values)


@dataclass(frozen=True, slots=True)
class LockedRun:
    """A run with its session and the session's parent, all locked until the transaction ends.

    `hooks` are those of the tenant.
    """

    run: Run
    session: Session
    parent: Session | None
    hooks: EnabledHooks


async def lock_run_with_sessions(connection: Connection, tenant_id: str, run_id: str) -> LockedRun:
    """Lock parent, session and run, in one round trip.

    Every writer that needs more than one of them locks in this order. Raise RUN_LEASE_LOST if the
    run was deleted, and NOT_FOUND if the session's parent was.
    """
    values = {"tenant_id": tenant_id, "run_id": run_id}
    names = ("lock_parent_of_run", "lock_session_of_run", "lock_run")
    locked = [await connection.execute(_SQL[name], values) for name in names]
    hooks = await send_enabled_hooks(connection, tenant_id)
    parent, session, run = [await cursor.fetchone() for cursor in locked]
    if session is None or run is None:
        raise run_deleted(run_id)
    if parent is None and session["parent_session_id"]:
        raise not_found("session", session["parent_session_id"])
    return LockedRun(
        run_of(run), session_of(session), session_of(parent) if parent else None, await hooks.fetch()
    )


@dataclass(frozen=True, slots=True)
class KilledRun:
    """A killed run that a runner held, for the fence of its transcript."""

    run_id: str
    session_id: str
    epoch: int


async def list_killed_runs(connection: Connection, tenant_id: str, session_ids: list[str]) -> list[KilledRun]:
    """Return the sessions' killed runs that a runner held."""
    values = {"tenant_id": tenant_id, "session_ids": session_ids}
    rows = await (await connection.execute(_SQL["list_killed_runs"], values)).fetchall()
    return [KilledRun(**row) for row in rows]


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A claimed run with its session and agent. `agent` is None if it was deleted.

    If `was_held`, the run was taken over from a runner that did not release it. `hooks` are those
    of the tenant, and so is the consent to content in traces.
    """

    run: Run
    session: Session
    agent: AgentProfile | None
    time_left: timedelta
    was_held: bool
    unread_count: int
    hooks: EnabledHooks
    trace_content: bool


async def claim_run(
    connection: Connection, taken: TakenRun, *, runner_id: str, lease_ttl: timedelta
) -> ClaimedRun | None:
    """Claim a taken run: RUNNING with the next epoch of its session and a lease, in one round trip.

    The session is locked. Return None if the run has ended, or if the take is void: then the run is
    for others to claim. Raise RUN_LEASE_LOST if it was deleted.
    """
    tenant_id, run_id = taken.tenant_id, taken.run_id
    values = {
        "tenant_id": tenant_id,
        "run_id": run_id,
        "taken_until": taken.taken_until,
        "runner_id": runner_id,
        "lease_ttl": lease_ttl,
    }
    names = ("lock_session_of_run", "claim_run", "get_claimed")
    cursors = [await connection.execute(_SQL[name], values) for name in names]
    hooks = await send_enabled_hooks(connection, tenant_id)
    locked, claimed, session = [await cursor.fetchone() for cursor in cursors]
    if locked is None or session is None:
        raise run_deleted(run_id)
    if claimed is None:
        if run_of(session["latest_run"]).state in TERMINAL_RUN_STATES:
            await run_queue.delete_entry(connection, tenant_id, run_id)
        return None
    await events.notify_watchers(connection, tenant_id, session["session_id"], may_be_done=False)
    return ClaimedRun(
        run=run_of(claimed),
        session=session_of(session),
        agent=agent_of(session["agent"]) if session["agent"] else None,
        time_left=claimed["time_left"],
        was_held=claimed["was_held"],
        unread_count=session["unread"],
        hooks=await hooks.fetch(),
        trace_content=bool(session["trace_content"]),
    )


async def release_run(
    connection: Connection, tenant_id: str, run_id: str, epoch: int, delay: NewDelay = NO_DELAY
) -> Run | None:
    """Release a run that is held at this epoch into the queue; this does not count as an attempt.

    A run with a delay can be claimed after its pause. Return None if the run is not held at this
    epoch.
    """
    statement = _SQL["delay_run" if delay.reason else "release_run"]
    values = {"tenant_id": tenant_id, "run_id": run_id, "epoch": epoch, **asdict(delay)}
    row = await (await connection.execute(statement, values)).fetchone()
    if row is None:
        return None
    run = run_of(row)
    await run_queue.release_entry(
        connection, tenant_id, run_id, attempt_count=run.attempt_count, pause=delay.pause
    )
    return run


async def set_counted_time(connection: Connection, tenant_id: str, run_id: str, now: datetime) -> None:
    """Note for the locked run that budgets have counted its work up to this time."""
    values = {"tenant_id": tenant_id, "run_id": run_id, "now": now}
    await connection.execute(_SQL["set_counted_time"], values)


async def set_reported_event_count(connection: Connection, tenant_id: str, run_id: str, count: int) -> None:
    """Set the number of reported events that are known."""
    values = {"tenant_id": tenant_id, "run_id": run_id, "count": count}
    await connection.execute(_SQL["set_reported_event_count"], values)


async def give_back_attempt(connection: Connection, tenant_id: str, run_id: str, epoch: int) -> None:
    """Give back the attempt that a later claim used because the lease of this epoch was lost.

    Does nothing if none was used, or if it was given back.
    """
    values = {"tenant_id": tenant_id, "run_id": run_id, "epoch": epoch}
    row = await (await connection.execute(_SQL["give_back_attempt"], values)).fetchone()
    if row is not None:
        await run_queue.set_attempts(connection, tenant_id, run_id, row["attempt_count"])


async def end_run(
    connection: Connection,
    tenant_id: str,
    run: Run,
    outcome: RunOutcome,
    *,
    token_ttl: timedelta,
    epoch: int | None = None,
) -> PendingRow[Run]:
    """Set the terminal state once, remove the run from the queue and append its event.

    Revoke its tokens, of which none is valid for longer than `token_ttl`. The pending row is the
    run. There is no row if the run has a terminal state, or is not held at `epoch`. The session is
    locked.
    """
    values = {
        "tenant_id": tenant_id,
        "run_id": run.run_id,
        "epoch": epoch,
        "state": outcome.state.value,
        "draft_entry_id": outcome.draft_entry_id,
        "result_text": without_nul(outcome.result_text),
        "error_reason": outcome.error_reason,
        "error_message": without_nul(outcome.error_message),
        "usage": None if outcome.usage is None else Jsonb(outcome.usage),
        "token_ttl": token_ttl,
    }
    ended = PendingRow(await connection.execute(_SQL["end_run"], values), run_of)
    await events.notify_watchers(connection, tenant_id, run.session_id)
    await run_queue.notify_runners_of_place(connection, tenant_id)
    if run.epoch:
        await revoked_tokens.notify_of_revocation(connection)
    return ended


async def delete_runs(connection: Connection, tenant_id: str, session_ids: Sequence[str]) -> None:
    """Delete all runs of the sessions."""
    values = {"tenant_id": tenant_id, "session_ids": list(session_ids)}
    await connection.execute(_SQL["delete_runs"], values)
