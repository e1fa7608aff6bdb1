"""Runs that wait for a person or a budget, without a runner."""

from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_session.domain.runs import Run
from spawnmesh_session.store import run_queue
from spawnmesh_session.store.rows import run_of

_SQL = load_statements(__name__)


async def park_run(
    connection: Connection, tenant_id: str, run: Run, approval_id: str, now: datetime, expire_time: datetime
) -> Run:
    """Let the locked and held run wait for a person until `expire_time`, without a runner.

    This does not count as an attempt.
    """
    values = {
        "tenant_id": tenant_id,
        "run_id": run.run_id,
        "epoch": run.epoch,
        "approval_id": approval_id,
        "now": now,
    }
    row = await (await connection.execute(_SQL["park_run"], values)).fetchone()
    if row is None:
        raise RuntimeError("a run that was locked and held was not parked")
    parked = run_of(row)
    await run_queue.park_entry(
        connection, tenant_id, run.run_id, attempt_count=parked.attempt_count, expire_time=expire_time
    )
    return parked


async def wait_longer(connection: Connection, tenant_id: str, run: Run, expire_time: datetime) -> None:
    """Let the locked run, which waits for a person, wait until another time."""
    await run_queue.park_entry(
        connection, tenant_id, run.run_id, attempt_count=run.attempt_count, expire_time=expire_time
    )


async def park_run_for_budget(
    connection: Connection,
    tenant_id: str,
    run: Run,
    budget_session_id: str,
    now: datetime,
    expire_time: datetime,
    usage: dict[str, Any] | None,
) -> Run:
    """Let the locked and held run wait for the budget of the session until `expire_time`, without a
    runner.

    This does not count as an attempt. `usage` is what the run has used so far, if it is known.
    """
    values = {
        "tenant_id": tenant_id,
        "run_id": run.run_id,
        "epoch": run.epoch,
        "budget_session_id": budget_session_id,
        "now": now,
        "usage": None if usage is None else Jsonb(usage),
    }
    row = await (await connection.execute(_SQL["park_run_for_budget"], values)).fetchone()
    if row is None:
        raise RuntimeError("a run that was locked and held was not parked")
    parked = run_of(row)
    await run_queue.park_entry(
        connection,
        tenant_id,
        run.run_id,
        attempt_count=parked.attempt_count,
        expire_time=expire_time,
        for_budget=True,
    )
    return parked


async def wait_on(
    connection: Connection, tenant_id: str, run: Run, budget_session_id: str, expire_time: datetime
) -> None:
    """Let the run, parked for a budget, wait for this session's budget until `expire_time`."""
    values = {"tenant_id": tenant_id, "run_id": run.run_id, "budget_session_id": budget_session_id}
    await connection.execute(_SQL["wait_on"], values)
    await run_queue.park_entry(
        connection,
        tenant_id,
        run.run_id,
        attempt_count=run.attempt_count,
        expire_time=expire_time,
        for_budget=True,
    )


async def list_waiting_runs(
    connection: Connection, tenant_id: str, budget_session_id: str, *, after_id: str, limit: int
) -> list[str]:
    """Return the ids of the next runs that wait for the budget of the session."""
    values = {
        "tenant_id": tenant_id,
        "budget_session_id": budget_session_id,
        "after_id": after_id,
        "limit": limit,
    }
    rows = await (await connection.execute(_SQL["list_waiting_runs"], values)).fetchall()
    return [str(row["run_id"]) for row in rows]


async def unpark_run(connection: Connection, tenant_id: str, waiting: Run, now: datetime) -> Run:
    """Queue the locked run that waits for a person or a budget.

    Its deadline is later by the time of the wait.
    """
    # A write on a Citus cluster cannot compute a time.
    deadline_time = waiting.deadline_time + (now - (waiting.wait_time or now))
    values = {"tenant_id": tenant_id, "run_id": waiting.run_id, "now": now, "deadline_time": deadline_time}
    row = await (await connection.execute(_SQL["unpark_run"], values)).fetchone()
    if row is None:
        raise RuntimeError("a run that was locked and waited was not queued")
    run = run_of(row)
    await run_queue.unpark_entry(connection, tenant_id, run.run_id, run.deadline_time)
    return run
