"""Waiting for what becomes of a session."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from psycopg.rows import DictRow
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.listener import Listener

from spawnmesh_session.domain import TERMINAL_EVENT_KINDS, TERMINAL_RUN_STATES, TERMINAL_SESSION_STATES
from spawnmesh_session.store import sessions

_LOOK_AGAIN_SECONDS = 30.0  # Everyone is woken after a lost connection; this is for one that is lost without a sign.


def is_done(session: DictRow) -> bool:
    """Whether the session is terminal or its newest run has ended."""
    run = session["latest_run"]
    return session["state"] in TERMINAL_SESSION_STATES or (run is not None and run["state"] in TERMINAL_RUN_STATES)


@dataclass(frozen=True, slots=True)
class Watch:
    """Follows sessions. Looks are bounded, so that thousands who wait, woken at once, leave connections to all other calls."""

    database: Database
    listener: Listener
    looks: asyncio.Semaphore

    async def wait(self, tenant_id: str, session_id: str, visible_to: str, timeout_seconds: float) -> DictRow:
        """The session, once it is done or the time is over."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_seconds
        with self.listener.subscription("session_changed", f"{tenant_id}:{session_id}") as changed:
            while True:
                async with self.looks:
                    session = await sessions.look_at(self.database, tenant_id, session_id, visible_to=visible_to)
                left = give_up - loop.time()
                if is_done(session) or left <= 0:
                    return session
                await changed.wait(min(left, _LOOK_AGAIN_SECONDS))

    async def events(
        self, tenant_id: str, session_id: str, visible_to: str, after_cursor: int
    ) -> AsyncGenerator[DictRow, None]:
        """Every event behind the cursor, once and in order, as they commit; ends behind a terminal one."""
        with self.listener.subscription("session_changed", f"{tenant_id}:{session_id}") as changed:
            while True:
                async with self.looks, self.database.transaction(tenant_id) as connection:
                    session = await sessions.get(connection, tenant_id, session_id, visible_to=visible_to)
                    page = await sessions.list_events(connection, tenant_id, session_id, after_cursor)
                for event in page:
                    after_cursor = event["cursor"]
                    yield event
                    if event["kind"] in TERMINAL_EVENT_KINDS:
                        return
                if not page:
                    if session["state"] in TERMINAL_SESSION_STATES:
                        return
                    await changed.wait(_LOOK_AGAIN_SECONDS)
