"""Record what the service does with transcripts, for `WatchActivities`."""

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

from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.change_notifier import ChangeNotifier, open_change_notifier
from spawnmesh_transcript.store import activities as activity_store

_MAX_PENDING = 1_000
"""Activities of one tenant that wait in memory; beyond it they are dropped.

The limit keeps memory bounded while the database is unavailable.
"""

# Tenants written concurrently: one tenant's lock wait leaves the other writer to the rest.
_WRITERS = 2

log = structlog.get_logger()


class ActivityRecorder:
    """Record activities.

    A failure is logged and never raised: it does not undo what was recorded.
    """

    def __init__(self, database: Database, notifier: ChangeNotifier, tasks: asyncio.TaskGroup) -> None:
        self._database = database
        self._notifier = notifier
        self._tasks = tasks
        self._writers = asyncio.Semaphore(_WRITERS)
        self._pending: dict[str, deque[tuple[str, bytes]]] = {}

    async def record(self, key: Key, activity: pb.Activity) -> None:
        """Record one activity in a short transaction of its own.

        Records nothing if the transcript does not exist any more.
        """
        await self._write(key.tenant_id, [(key.session_id, activity.SerializeToString())])

    def record_later(self, key: Key, activity: pb.Activity) -> None:
        """Record one activity in the background."""
        pending = self._pending.get(key.tenant_id)
        if pending is None:
            pending = self._pending[key.tenant_id] = deque()
            # In an empty context: the task outlives the caller's deadline.
            self._tasks.create_task(
                self._write_pending(key.tenant_id, pending), name="record activities", context=Context()
            )
        if len(pending) < _MAX_PENDING:
            pending.append((key.session_id, activity.SerializeToString()))
        else:
            log.warning("activity_dropped", session=key.session_id, reason="too many are pending")

    async def _write_pending(self, tenant_id: str, pending: deque[tuple[str, bytes]]) -> None:
        async with self._writers:
            while pending:
                rows = list(pending)
                pending.clear()
                await self._write(tenant_id, rows)
            del self._pending[tenant_id]

    async def _write(self, tenant_id: str, rows: Sequence[tuple[str, bytes]]) -> None:
        try:
            recorded = await activity_store.record_activities(self._database, tenant_id, rows)
        except (psycopg.Error, PoolTimeout) as error:
            log.warning("activities_not_recorded", count=len(rows), error=type(error).__name__)
            return
        if recorded:
            self._notifier.activities_recorded(tenant_id)


@asynccontextmanager
async def open_activity_recorder(database: Database) -> AsyncIterator[ActivityRecorder]:
    """Record activities during the block, and finish the pending ones at its end.

    Wakes watchers at every replica.
    """
    async with open_change_notifier(database) as notifier, asyncio.TaskGroup() as tasks:
        yield ActivityRecorder(database, notifier, tasks)
