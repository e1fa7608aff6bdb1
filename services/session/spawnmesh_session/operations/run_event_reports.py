"""Tell the watchers of a session what its runner reports."""

from collections.abc import Sequence

from spawnmesh_postgres.database import Database

from spawnmesh_session.domain.run_events import RunEvent, unknown_events
from spawnmesh_session.domain.runs import CallingRun, require_lease
from spawnmesh_session.store import events, runs, sessions


async def report_events(
    database: Database,
    tenant_id: str,
    calling: CallingRun,
    first_number: int,
    reported: Sequence[RunEvent],
) -> int:
    """Append each event that is not known, and return the number of known ones.

    Raise RUN_LEASE_LOST if the run is not held at this epoch.
    """
    async with database.pipelined(tenant_id) as connection:
        await sessions.lock_session(connection, tenant_id, calling.session_id)
        run = await runs.lock_run(connection, tenant_id, calling.run_id)
        require_lease(run, calling.epoch)
        fresh, count = unknown_events(reported, first_number, run.reported_event_count)
        for event in fresh:
            await events.append_event(
                connection,
                tenant_id,
                calling.session_id,
                event.kind,
                run_id=run.run_id,
                detail=event.detail,
            )
        if count > run.reported_event_count:
            await runs.set_reported_event_count(connection, tenant_id, run.run_id, count)
        return count
