"""Entries as they come."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.listener import Listener

from spawnmesh_transcript.announcements import CHANNEL, topic
from spawnmesh_transcript.domain.entries import Head, StoredEntry
from spawnmesh_transcript.operations import list_entries
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.store import Filter, Key, Position

_PAGE_SIZE = 200
_LOOK_AGAIN_SECONDS = 5.0  # For what was never announced.


@dataclass(frozen=True, slots=True)
class News:
    """Entries by seq; all up to `read_seq` have been sent, or left out by the filter."""

    entries: list[StoredEntry]
    head: Head
    read_seq: int


@dataclass(frozen=True, slots=True)
class Followers:
    """Follows transcripts. Looks are bounded, so that many who follow, woken at once, leave connections to all other calls."""

    database: Database
    payloads: Payloads
    listener: Listener
    looks: asyncio.Semaphore

    async def follow(self, key: Key, choice: Filter, *, after_seq: int, incarnation: str) -> AsyncGenerator[News, None]:
        """What there is behind the position, at once and also where it is nothing; then each time there is more.

        Raises NOT_FOUND as soon as the transcript is gone, or is not of the incarnation it had, or was asked to have.
        """
        with self.listener.subscription(CHANNEL, topic(key)) as changed:
            is_first = True
            while True:
                async with self.looks:
                    page = await list_entries(
                        self.database, self.payloads, key, Position(after_seq), choice, page_size=_PAGE_SIZE
                    )
                incarnation = incarnation or page.head.incarnation
                if page.head.incarnation != incarnation:
                    raise not_found("transcript", key.session_id)
                after_seq = page.entries[-1].seq if page.has_more else max(after_seq, page.head.seq)
                if page.entries or is_first:
                    is_first = False
                    yield News(page.entries, page.head, after_seq)
                if not page.has_more:
                    await changed.wait(_LOOK_AGAIN_SECONDS)
