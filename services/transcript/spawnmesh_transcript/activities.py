"""Writes down what the service does with transcripts, for those who watch; see migrations/0012 for the order of positions."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import Context

import psycopg
import structlog
from psycopg_pool import PoolTimeout
from spawnmesh.transcript.v1 import activity_service_pb2 as pb
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.announcements import Announcements, open_announcements
from spawnmesh_transcript.store import Key

REMEMBERED_DAYS = 7

_MAX_WAITING = 1_000
"""Of one tenant; what comes beyond is lost, rather than that memory fills while the database is away."""

_PAGE_ROWS = 2_000
_AT_ONCE = 2  # Writers side by side: a tenant whose lock is held long leaves one to the others.

_SQL = load_statements("spawnmesh_transcript")

log = structlog.get_logger()


class Activities:
    """Records activities. A failure to is logged and never raised: nothing that was done is undone for want of a note of it."""

    def __init__(self, database: Database, announcements: Announcements, tasks: asyncio.TaskGroup) -> None:
        self._database = database
        self._announcements = announcements
        self._tasks = tasks
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._waiting: dict[str, deque[tuple[str, bytes]]] = {}

    async def record(self, key: Key, activity: pb.Activity) -> None:
        """Records what was done with a transcript, in a short transaction of its own; nothing where the transcript is gone."""
        await self._write(key.tenant_id, [(key.session_id, activity.SerializeToString())])

    def record_later(self, key: Key, activity: pb.Activity) -> None:
        """As `record`, and the caller waits for nothing."""
        waiting = self._waiting.get(key.tenant_id)
        if waiting is None:
            waiting = self._waiting[key.tenant_id] = deque()
            # In no caller's context: it goes on when the caller's time is over.
            self._tasks.create_task(
                self._write_waiting(key.tenant_id, waiting), name="record activities", context=Context()
            )
        if len(waiting) < _MAX_WAITING:
            waiting.append((key.session_id, activity.SerializeToString()))
        else:
            log.warning("activity not recorded", session=key.session_id, reason="too many wait")

    async def _write_waiting(self, tenant_id: str, waiting: deque[tuple[str, bytes]]) -> None:
        async with self._turns:
            while waiting:
                rows = list(waiting)
                waiting.clear()
                await self._write(tenant_id, rows)
            del self._waiting[tenant_id]

    async def _write(self, tenant_id: str, rows: Sequence[tuple[str, bytes]]) -> None:
        parameters = {"session_ids": [session_id for session_id, _ in rows], "activities": [body for _, body in rows]}
        try:
            written = await self._database.call(tenant_id, _SQL["record_activities"], parameters)
        except (psycopg.Error, PoolTimeout) as error:
            log.warning("activities not recorded", count=len(rows), error=type(error).__name__)
            return
        if written:
            self._announcements.happened(tenant_id)


async def forget_activities(database: Database, tenant_id: str) -> int:
    """Deletes the tenant's activities that are older than REMEMBERED_DAYS; how many they were."""
    parameters = {"tenant_id": tenant_id, "days": REMEMBERED_DAYS, "row_count": _PAGE_ROWS}
    forgotten = 0
    while True:
        async with database.transaction(tenant_id) as connection:
            await connection.execute(_SQL["keep_to_indexes"])
            gone = (await connection.execute(_SQL["forget_activities"], parameters)).rowcount
        forgotten += gone
        if gone < _PAGE_ROWS:
            return forgotten


@asynccontextmanager
async def open_activities(database: Database) -> AsyncIterator[Activities]:
    """Records activities during the block, at whose end those under way are finished, and wakes those who watch at any replica."""
    async with open_announcements(database) as announcements, asyncio.TaskGroup() as tasks:
        yield Activities(database, announcements, tasks)
