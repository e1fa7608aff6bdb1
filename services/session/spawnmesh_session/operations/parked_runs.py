"""Runs that wait without a runner: their places, and their way back into the queue."""

from spawnmesh_postgres.database import Connection

from spawnmesh_session.domain.runs import Run, RunState, check_queue
from spawnmesh_session.domain.sessions import EventKind
from spawnmesh_session.domain.spawns import spawn_limits_of
from spawnmesh_session.store import events, run_queue, runs, tenants, waiting_runs


async def require_place(connection: Connection, tenant_id: str) -> None:
    """Raise RUN_QUEUE_FULL if as many runs of the tenant wait for people and budgets as may wait
    for runners.

    Runs that are given up at the same time can exceed the limit by their number.
    """
    settings = (await tenants.get_existing_tenant(connection, tenant_id)).settings
    limit = spawn_limits_of(settings).max_queued_run_count
    check_queue(await run_queue.count_parked_runs(connection, tenant_id, limit), limit)


async def queue_again(connection: Connection, tenant_id: str, run: Run, why: str) -> Run:
    """Queue the locked run, which waited for a person or a budget, with an event that says why."""
    queued = await waiting_runs.unpark_run(connection, tenant_id, run, await runs.read_time(connection))
    await events.append_event(
        connection,
        tenant_id,
        run.session_id,
        EventKind.RUN,
        run_id=run.run_id,
        run_state=RunState.QUEUED,
        detail=why,
    )
    return queued
