"""Read the keys of a tenant's transcripts, page by page, for the jobs that visit each of them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from spawnmesh_postgres.database import Connection, Database

from spawnmesh_transcript.domain.transcripts import Key

PAGE_ROWS = 100

FindSessions = Callable[[Connection, str, str], Awaitable[list[str]]]
"""Return up to PAGE_ROWS session ids of a tenant, in order, after a session id."""


async def transcript_keys(
    database: Database, tenant_id: str, find: FindSessions, stop: asyncio.Event
) -> AsyncGenerator[Key, None]:
    """Yield the keys of the sessions that `find` returns, until `stop` is set."""
    after = ""
    while True:
        async with database.transaction(tenant_id) as connection:
            session_ids = await find(connection, tenant_id, after)
        for session_id in session_ids:
            if stop.is_set():
                return
            yield Key(tenant_id, session_id)
        if len(session_ids) < PAGE_ROWS:
            return
        after = session_ids[-1]
