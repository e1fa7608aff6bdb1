"""Notify followers of a transcript and watchers of a tenant, at every replica, that there is more
to read.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import structlog
from psycopg_pool import PoolTimeout
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_postgres.database import Database

from spawnmesh_transcript.domain.transcripts import Key

CHANNEL = "transcript_entries"

_PAUSE_SECONDS = 0.01
"""Pause between two notifications. A watcher sees new text so much later.

A NOTIFY in each append's own transaction would serialize all commits of the database.
"""

log = structlog.get_logger()


def transcript_topic(key: Key) -> str:
    """Return the topic that followers of the transcript subscribe to."""
    return f"{key.tenant_id}:{key.session_id}"


def draft_topic(key: Key) -> str:
    """Return the topic that watchers of the transcript's draft subscribe to."""
    return f"{key.tenant_id}:{key.session_id}:draft"


def activity_topic(tenant_id: str) -> str:
    """Return the topic that watchers of the tenant's activities subscribe to."""
    return f"{tenant_id}:activities"


class ChangeNotifier:
    """Collect changed topics and send them in one NOTIFY.

    Delivery is not promised: a process that dies drops its topics, so that followers also poll.
    """

    def __init__(self) -> None:
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._is_closed = False

    def transcript_changed(self, key: Key) -> None:
        """Wake followers: the transcript has new entries, or was deleted."""
        self._changed.add(transcript_topic(key))
        self._wake.set()

    def draft_changed(self, key: Key) -> None:
        """Wake watchers of the draft: it has more text, or was retracted."""
        self._changed.add(draft_topic(key))
        self._wake.set()

    def activities_recorded(self, tenant_id: str) -> None:
        """Wake watchers: the tenant has new activities."""
        self._changed.add(activity_topic(tenant_id))
        self._wake.set()

    def close(self) -> None:
        """Stop after the current notification.

        Call it before the task is cancelled: a wait for a connection may swallow the cancellation.
        """
        self._is_closed = True

    async def notify_until_closed(self, database: Database) -> None:
        """Send notifications until the notifier is closed and the task cancelled."""
        while not self._is_closed:
            await self._wake.wait()
            self._wake.clear()
            topics, self._changed = self._changed, set()
            try:
                await database.notify(CHANNEL, sorted(topics))
            except (psycopg.Error, PoolTimeout) as error:
                raise_if_cancelled()
                log.warning("changes_not_notified", count=len(topics), error=type(error).__name__)
            await asyncio.sleep(_PAUSE_SECONDS)


@asynccontextmanager
async def open_change_notifier(database: Database) -> AsyncIterator[ChangeNotifier]:
    """Send notifications during the block."""
    notifier = ChangeNotifier()
    task = asyncio.create_task(notifier.notify_until_closed(database), name="notify changes")
    try:
        yield notifier
    finally:
        notifier.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
