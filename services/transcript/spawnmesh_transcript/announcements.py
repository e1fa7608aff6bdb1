"""Telling those who follow a transcript, at whichever replica, that there is more to read."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import structlog
from psycopg_pool import PoolTimeout
from spawnmesh_postgres.database import Database

from spawnmesh_transcript.store import Key

CHANNEL = "transcript_entries"

_PAUSE_SECONDS = 0.05
"""Between two notifications. One in each append's own transaction would make all commits of the database wait in one line."""

log = structlog.get_logger()


def topic(key: Key) -> str:
    """What followers of the transcript listen for."""
    return f"{key.tenant_id}:{key.session_id}"


class Announcements:
    """Collects transcripts that changed and names them all in one notification.

    Not promised: that each change is announced; a process that dies in between says nothing, so followers also look by themselves.
    """

    def __init__(self) -> None:
        self._changed: set[str] = set()
        self._some = asyncio.Event()

    def changed(self, key: Key) -> None:
        """The transcript has something new, or is gone."""
        self._changed.add(topic(key))
        self._some.set()

    async def announce_for_ever(self, database: Database) -> None:
        """Announces until it is cancelled."""
        while True:
            await self._some.wait()
            self._some.clear()
            topics, self._changed = self._changed, set()
            try:
                await database.notify(CHANNEL, sorted(topics))
            except (psycopg.Error, PoolTimeout) as error:
                log.warning("changes not announced", count=len(topics), error=type(error).__name__)
            await asyncio.sleep(_PAUSE_SECONDS)


@asynccontextmanager
async def open_announcements(database: Database) -> AsyncIterator[Announcements]:
    """Announces during the block."""
    announcements = Announcements()
    task = asyncio.create_task(announcements.announce_for_ever(database), name="announce transcripts")
    try:
        yield announcements
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
