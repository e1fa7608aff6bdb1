"""The close of a session: it takes no further runs."""

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.jobs.job import NewJob
from spawnmesh_postgres.jobs.store import enqueue

from spawnmesh_session.domain.enabled_hooks import ALL_HOOKS, EnabledHooks, Hook
from spawnmesh_session.domain.sessions import Session, SessionState, releases_attachments
from spawnmesh_session.domain.tenants import retains_kept_sessions
from spawnmesh_session.operations import follow_up_jobs
from spawnmesh_session.store import sessions, tenants


async def close_idle_session(connection: Connection, tenant_id: str, session: Session) -> None:
    """ACTIVE -> CLOSED for a session without a live run, and release the files as its cleanup says.

    `RunTerminator` closes a session with its last run.
    """
    await enqueue(connection, tenant_id, *await close_session(connection, tenant_id, session, ALL_HOOKS))


async def close_session(
    connection: Connection, tenant_id: str, session: Session, hooks: EnabledHooks
) -> list[NewJob]:
    """Close the session and return the jobs to enqueue; none if the session was not ACTIVE.

    Its end is published if a plugin may be there to hear it.
    """
    session_id, traceparent = session.session_id, session.traceparent
    if session.state != SessionState.ACTIVE:
        return []
    await sessions.close_session(connection, tenant_id, session_id)
    due = []
    if Hook.SESSION_END in hooks:
        due.append(follow_up_jobs.publish_session_end(session))
    if session.receipt:
        tenant = await tenants.get_existing_tenant(connection, tenant_id)
        retains = retains_kept_sessions(tenant.settings)
        if releases_attachments(session.cleanup, retain_on_session_keep=retains):
            due.append(follow_up_jobs.release_attachments(session_id, traceparent))
    return due
