"""Tell the watchers of a session which models failed."""

from collections.abc import Sequence

from spawnmesh_postgres.database import Database

from spawnmesh_session.domain.model_failures import FailedModelCall, unknown_failures
from spawnmesh_session.domain.runs import HELD_RUN_STATES, CallingRun, lease_lost
from spawnmesh_session.domain.sessions import EventKind
from spawnmesh_session.store import events, runs, sessions


async def report_failures(
    database: Database,
    tenant_id: str,
    calling: CallingRun,
    first_number: int,
    failures: Sequence[FailedModelCall],
) -> int:
    """Append an event for each failure that is not known, and return the number of known ones.

    Raise RUN_LEASE_LOST if the run is not held at this epoch.
    """
    async with database.pipelined(tenant_id) as connection:
        await sessions.lock_session(connection, tenant_id, calling.session_id)
        run = await runs.lock_run(connection, tenant_id, calling.run_id)
        if run.state not in HELD_RUN_STATES or run.epoch != calling.epoch:
            raise lease_lost(run, calling.epoch)
        fresh, count = unknown_failures(failures, first_number, run.model_failure_count)
        for failure in fresh:
            await events.append_event(
                connection,
                tenant_id,
                calling.session_id,
                EventKind.MODEL_FAILED,
                run_id=run.run_id,
                detail=failure.detail,
            )
        if count > run.model_failure_count:
            await runs.set_model_failure_count(connection, tenant_id, run.run_id, count)
        return count
