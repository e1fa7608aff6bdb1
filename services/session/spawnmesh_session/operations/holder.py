"""What a run's token is worth: it lives longer than the hold on the run that it was made for."""

from spawnmesh_postgres.database import Connection

from spawnmesh_session.domain import Holder
from spawnmesh_session.operations.claim import require_held
from spawnmesh_session.store import runs, sessions


async def require_holder(connection: Connection, tenant_id: str, holder: Holder | None) -> None:
    """Raises RUN_LEASE_LOST unless the run that calls is held at its epoch, as it then is until the transaction ends; nothing for a client.

    Locks the run's session, whoever claims it waits for that, and before it the session's parent: parents come before their children.
    """
    if holder is None:
        return
    session = await sessions.get(connection, tenant_id, holder.session_id)
    if session["parent_session_id"]:
        await sessions.lock(connection, tenant_id, session["parent_session_id"])
    await sessions.lock(connection, tenant_id, holder.session_id)
    require_held(await runs.get(connection, tenant_id, holder.run_id), holder.epoch)
