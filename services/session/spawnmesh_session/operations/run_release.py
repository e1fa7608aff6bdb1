"""The release of a held run: it goes back into the queue."""

from spawnmesh_postgres.database import Database

from spawnmesh_session.domain.runs import Run, RunState, lease_lost
from spawnmesh_session.domain.sessions import EventKind
from spawnmesh_session.store import events, runs, sessions


async def release_run(database: Database, tenant_id: str, run_id: str, epoch: int) -> Run:
    """Release the run for the runner that holds it; this does not count as an attempt.

    A repeat at the same epoch returns the run as it is. Raise RUN_LEASE_LOST if the run is not
    held at this epoch.
    """
    async with database.transaction(tenant_id) as connection:
        session_id = (await runs.get_run(connection, tenant_id, run_id)).session_id
        await sessions.lock_session(connection, tenant_id, session_id)
        run = await runs.release_run(connection, tenant_id, run_id, epoch)
        if run is None:
            run = await runs.get_run(connection, tenant_id, run_id)
            if run.state != RunState.QUEUED or run.epoch != epoch:
                raise lease_lost(run, epoch)
            return run
        await events.append_event(
            connection,
            tenant_id,
            session_id,
            EventKind.RUN,
            run_id=run_id,
            run_state=RunState.QUEUED,
            detail="released",
        )
        return run
