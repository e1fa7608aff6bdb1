"""Sending a message into a session."""

from dataclasses import dataclass

from psycopg.rows import DictRow
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_session.domain import SessionState, message_key, storable
from spawnmesh_session.operations.endings import Endings
from spawnmesh_session.store import inbox, runs, sessions, tenants


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of people and of parents."""

    database: Database
    endings: Endings

    async def send(self, tenant_id: str, session_id: str, visible_to: str, request_id: str, text: str) -> DictRow:
        """Puts the message into the inbox, once for the request_id; returns the run that will read it."""
        key = message_key(request_id)
        async with self.database.transaction(tenant_id) as connection:
            await sessions.get(connection, tenant_id, session_id, visible_to=visible_to)
            await tenants.enter_ready(connection, tenant_id)
            session = await sessions.lock(connection, tenant_id, session_id)
            known = await inbox.text_of(connection, tenant_id, session_id, key)
            if known is not None and known != storable(text):
                raise MeshError(
                    Reason.REQUEST_ID_REUSED,
                    f"request_id {request_id!r} was used before with another text; draw a new one",
                    facts={"request_id": request_id},
                )
            live = await runs.lock_live(connection, tenant_id, session_id)
            if known is not None:
                return live or await self._latest(connection, tenant_id, session_id)
            if session["state"] != SessionState.ACTIVE:
                raise MeshError(
                    Reason.SESSION_CLOSED,
                    f"session {session_id} is {session['state']} and takes no more messages",
                    facts={"session_id": session_id, "state": session["state"]},
                )
            await inbox.insert(connection, tenant_id, session_id, key, text)
            return live or await self.endings.queue_run(connection, tenant_id, session)

    async def _latest(self, connection: Connection, tenant_id: str, session_id: str) -> DictRow:
        session = await sessions.get(connection, tenant_id, session_id)
        return await runs.get(connection, tenant_id, session["latest_run"]["run_id"])
