"""ArchiveSession.

Archives the session and its descendants: they are listed only when requested, and pending messages
are dropped.
"""

from spawnmesh.session.v1.session_service_pb2 import ArchiveSessionRequest, ArchiveSessionResponse
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.sessions import FamilyMember, SessionState
from spawnmesh_session.operations.session_closing import close_idle_session
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import render_session
from spawnmesh_session.store import runs, sessions


async def archive_session(
    request: ArchiveSessionRequest, caller: Caller, deps: Dependencies
) -> ArchiveSessionResponse:
    """Archive the session and its descendants, all or none; close those that are open and idle.

    Raise RUN_STATE if one has a live run, and SPAWN_IN_PROGRESS if one is being spawned.
    """
    tenant_id, session_id = caller.tenant_id, request.session_id
    async with deps.database.pipelined(tenant_id) as connection:
        family = await sessions.lock_family(connection, tenant_id, session_id)
        for member in family:
            await _close(connection, tenant_id, member)
        members = [member.session_id for member in family]
        archived_count = await sessions.archive_sessions(connection, tenant_id, members)
        session = await sessions.read_session(connection, tenant_id, session_id)
    return ArchiveSessionResponse(session=render_session(session), archived_session_count=archived_count)


async def _close(connection: Connection, tenant_id: str, member: FamilyMember) -> None:
    session_id = member.session_id
    if member.state == SessionState.PROVISIONING:
        raise MeshError(
            Reason.SPAWN_IN_PROGRESS,
            f"session {session_id} is being spawned; archive it when it has ended",
            retry_after_seconds=1.0,
            facts={"session_id": session_id},
        )
    if member.state != SessionState.ACTIVE:
        return
    live = await runs.lock_live_run(connection, tenant_id, session_id)
    if live is not None:
        raise MeshError(
            Reason.RUN_STATE,
            f"session {session_id} has a live run; kill it first, or wait for its end",
            facts={"session_id": session_id, "run_id": live.run_id, "state": live.state},
        )
    session = await sessions.lock_session(connection, tenant_id, session_id)
    await close_idle_session(connection, tenant_id, session)
