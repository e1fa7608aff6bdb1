"""The lease of the calling run: a call in its name needs it."""

from spawnmesh_postgres.database import Connection

from spawnmesh_session.domain.runs import CallingRun, require_lease
from spawnmesh_session.store import runs, sessions


async def require_lease_of(connection: Connection, tenant_id: str, calling_run: CallingRun | None) -> None:
    """Raise RUN_LEASE_LOST unless the calling run is held at its epoch until the transaction ends.

    Do nothing for a client. A claim waits for the lock on the run's session, so this locks the
    session, and its parent before it: parents are locked before their children.
    """
    if calling_run is None:
        return
    session = await sessions.read_session(connection, tenant_id, calling_run.session_id)
    if session.parent_session_id:
        await sessions.lock_session(connection, tenant_id, session.parent_session_id)
    await sessions.lock_session(connection, tenant_id, calling_run.session_id)
    require_lease(await runs.get_run(connection, tenant_id, calling_run.run_id), calling_run.epoch)
