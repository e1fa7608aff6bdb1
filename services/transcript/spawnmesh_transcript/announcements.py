"""Telling those who follow a transcript or watch a tenant, at whichever replica, that there is more to read."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import structlog
from psycopg_pool import PoolTimeout
from spawnmesh_core.cancellation import heed_cancellation
from spawnmesh_postgres.database import Database

from spawnmesh_transcript.store import Key

CHANNEL = "transcript_entries"

_PAUSE_SECONDS = 0.05
"""Between two notifications. One in each append's own transaction would make all commits of the database wait in one line."""

log = structlog.get_logger()


def topic(key: Key) -> str:
    """What followers of the transcript listen for."""
    return f"{key.tenant_id}:{key.session_id}"


def activity_topic(tenant_id: str) -> str:
    """What those who watch a tenant's activities listen for."""
    return f"{tenant_id}:activities"


class Announcements:
    """Collects what changed and names it all in one notification.

    Not promised: that each change is announced; a process that dies in between says nothing, so followers also look by themselves.
    """

    def __init__(self) -> None:
        self._changed: set[str] = set()
        self._some = asyncio.Event()
        self._is_closed = False

    def changed(self, key: Key) -> None:
        """The transcript has something new, or is gone."""
        self._changed.add(topic(key))
        self._some.set()

    def happened(self, tenant_id: str) -> None:
        """There are new activities in the tenant."""
        self._changed.add(activity_topic(tenant_id))
        self._some.set()

    def close(self) -> None:
        """Nothing more is announced. To be called before the task is cancelled: waiting for a connection may swallow that."""
        self._is_closed = True

    async def announce_until_closed(self, database: Database) -> None:
        """Announces until it is closed, and cancelled."""
        while not self._is_closed:
            await self._some.wait()
            self._some.clear()
            topics, self._changed = self._changed, set()
            try:
                await database.notify(CHANNEL, sorted(topics))
            except (psycopg.Error, PoolTimeout) as error:
                heed_cancellation()
                log.warning("changes not announced", count=len(topics), error=type(error).__name__)
            await asyncio.sleep(_PAUSE_SECONDS)


@asynccontextmanager
async def open_announcements(database: Database) -> AsyncIterator[Announcements]:
    """Announces during the block."""
    announcements = Announcements()
    task = asyncio.create_task(announcements.announce_until_closed(database), name="announce transcripts")
    try:
        yield announcements
    finally:
        announcements.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
