"""Read a transcript for its watchers. Those that are at the same position share a read."""

import asyncio
from contextvars import Context
from dataclasses import dataclass, replace

from spawnmesh_postgres.database import Database
from spawnmesh_runtime.limiter import FairLimiter

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.drafts import DraftId, LiveDraft
from spawnmesh_transcript.domain.entries import EntryFilter, Head, PagePosition, StoredEntry, WriterClaim
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.entry_pages import MAX_SCANNED_ENTRIES, PAGE_MAX_BYTES
from spawnmesh_transcript.operations.rehydration import rehydrate_entries
from spawnmesh_transcript.store import drafts as draft_store
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import snapshots
from spawnmesh_transcript.store import transcripts as transcript_store

_PAGE_SIZE = 200


@dataclass(frozen=True, slots=True)
class LivePosition:
    """The transcript, and what a watcher has of it: entries, and bytes of a draft."""

    key: Key
    seq: int
    draft: DraftId | None
    offset: int


@dataclass(frozen=True, slots=True)
class LivePage:
    """Entries behind a position and, if they reach the head, the draft; all of one snapshot."""

    entries: list[StoredEntry]
    head: Head
    draft: LiveDraft | None

    @property
    def is_last(self) -> bool:
        """True if the entries reach the head."""
        return not self.entries or self.entries[-1].seq >= self.head.seq


class LiveReads:
    """Reads pages for watchers.

    A notification wakes all watchers of a transcript at once. Those that ask for the same page
    before its read has begun get the page of one read. A page is never older than the call.
    """

    def __init__(self, database: Database, blobs: BlobStore, limit: FairLimiter) -> None:
        self._database, self._blobs, self._limit = database, blobs, limit
        self._next: dict[LivePosition, asyncio.Task[LivePage]] = {}
        # `finish` owns these tasks. A TaskGroup would end the service when one of them fails.
        self._tasks: set[asyncio.Task[LivePage]] = set()

    async def read(self, position: LivePosition) -> LivePage:
        """Return the page behind the position. Raises NOT_FOUND, and what `rehydrate_entries`
        raises.
        """
        task = self._next.get(position)
        if task is None:
            # Without the context of the first watcher, whose deadline would be that of all.
            task = asyncio.create_task(self._read(position), context=Context())
            self._next[position] = task
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        # A watcher that leaves does not take the page from the others.
        return await asyncio.shield(task)

    async def finish(self) -> None:
        """Wait until the reads have ended whose watchers have left."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[LivePage]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # All watchers may have left; otherwise they have it.

    async def _read(self, position: LivePosition) -> LivePage:
        try:
            async with self._limit.hold(position.key.tenant_id):
                del self._next[position]
                page = await self._read_snapshot(position)
                entries = await rehydrate_entries(self._database, self._blobs, position.key, page.entries)
                return replace(page, entries=entries)
        except BaseException:
            if self._next.get(position) is asyncio.current_task():
                del self._next[position]
            raise

    async def _read_snapshot(self, position: LivePosition) -> LivePage:
        key, after = position.key, PagePosition(position.seq)
        async with self._database.transaction(key.tenant_id) as connection:
            await snapshots.begin_snapshot(connection)
            head = (await transcript_store.get_transcript(connection, key)).head
            entries: list[StoredEntry] = []
            if head.seq > position.seq:
                entries, _ = await entry_store.list_entries(
                    connection,
                    key,
                    after,
                    EntryFilter(),
                    end_seq=after.end_seq(head.seq, MAX_SCANNED_ENTRIES),
                    page_size=_PAGE_SIZE,
                    max_bytes=PAGE_MAX_BYTES,
                )
            page = LivePage(entries, head, None)
            if not page.is_last or not head.writer_run_id:
                return page
            claim = WriterClaim(head.writer_run_id, head.writer_epoch)
            draft = await draft_store.read_draft(connection, key, claim, position.draft, position.offset)
            return replace(page, draft=draft)
