"""Index the words of transcripts for searches, up to the head at the time of a search.

An entry is indexed by the first search that needs it. Indexing goes on after its caller's deadline,
in one task for each transcript of this process: the next call finds the progress, however long one
entry takes.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from typing import NamedTuple

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.entries import EntryFilter, PagePosition, StoredEntry
from spawnmesh_transcript.domain.refusals import still_indexing
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.words import pieces_of
from spawnmesh_transcript.operations.entry_pages import read_page
from spawnmesh_transcript.operations.search.texts import texts_in
from spawnmesh_transcript.operations.search.threads import SearchThreads, WorkBudget
from spawnmesh_transcript.store import search as search_store
from spawnmesh_transcript.store.search import SearchProgress

_PAGE_SIZE = 500
_PAGES = 2  # Of all transcripts, in memory: a page and its pieces take some ten times its bytes.
_STEP_SECONDS = 0.2  # After it, the thread is free for others.


class _Piece(NamedTuple):
    seq: int
    number: int
    words: str


class SearchIndex:
    """The words of transcripts, as far as searches have indexed them."""

    def __init__(
        self, database: Database, blobs: BlobStore, threads: SearchThreads, tasks: asyncio.TaskGroup
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._threads = threads
        self._tasks = tasks
        self._limiter = FairLimiter(LimiterPolicy("search pages", "", _PAGES, tenant_capacity=1))
        self._in_flight: dict[Key, asyncio.Task[Exception | None]] = {}
        self._is_closed = False

    async def index_up_to_head(self, key: Key, *, deadline: float) -> None:
        """Index all entries that were committed before the call.

        Raises DEPENDENCY_UNAVAILABLE with the progress at the deadline (of the monotonic clock),
        after which indexing goes on; NOT_FOUND, and what `rehydrate_entries` raises.
        """
        wanted: int | None = None
        while True:
            known = await self._progress(key)
            wanted = known.head_seq if wanted is None else wanted
            if known.seq >= wanted:
                return
            task = self._start(key)
            await asyncio.wait([task], timeout=max(0.0, deadline - monotonic_seconds()))
            if not task.done() or task.cancelled():
                raise still_indexing(known.seq, wanted)
            if error := task.result():
                raise error

    def close(self) -> None:
        """Cancel the tasks in flight.

        A page that was read in part is read again by the next search.
        """
        self._is_closed = True  # A wait for a connection may swallow the cancellation.
        for task in self._in_flight.values():
            task.cancel()

    def _start(self, key: Key) -> "asyncio.Task[Exception | None]":
        task = self._in_flight.get(key)
        if task is None:
            # In an empty context: the task outlives the caller's deadline.
            task = self._tasks.create_task(self._index(key), name="index for searches", context=Context())
            self._in_flight[key] = task
        return task

    async def _index(self, key: Key) -> Exception | None:
        """Index up to the head. Return an error, which every waiting call raises."""
        try:
            while not self._is_closed:
                async with self._limiter.hold(key.tenant_id):
                    known = await self._progress(key)
                    if known.seq >= known.head_seq:
                        return None
                    await self._index_page(key, known)
        except Exception as error:  # noqa: BLE001 - every waiting call raises it.
            return error
        finally:
            self._in_flight.pop(key, None)
        return None

    async def _index_page(self, key: Key, known: SearchProgress) -> None:
        page = await read_page(
            self._database, self._blobs, key, PagePosition(known.seq), EntryFilter(), page_size=_PAGE_SIZE
        )
        if not page.entries:
            raise not_found("transcript", key.session_id)
        pieces: list[_Piece] = []
        remaining = _pieces(page.entries)
        while step := await self._next_pieces(remaining):
            pieces += step
        async with self._database.transaction(key.tenant_id) as connection:
            await search_store.advance_search(connection, key, known, page.entries[-1].seq, pieces)

    async def _next_pieces(self, remaining: Iterator[_Piece]) -> list[_Piece]:
        """Return as many of the remaining pieces as one step has time for, none at the end."""
        step = WorkBudget(_STEP_SECONDS)

        def make() -> list[_Piece]:
            made: list[_Piece] = []
            for piece in remaining:
                made.append(piece)
                if step.is_spent():
                    break
            return made

        return await self._threads.run_in_thread(step, make)

    async def _progress(self, key: Key) -> SearchProgress:
        async with self._database.transaction(key.tenant_id) as connection:
            known = await search_store.read_search_progress(connection, key)
        if known is None:
            raise not_found("transcript", key.session_id)
        return known


@asynccontextmanager
async def open_search_index(
    database: Database, blobs: BlobStore, threads: SearchThreads
) -> AsyncIterator[SearchIndex]:
    """Index transcripts during the block."""
    async with asyncio.TaskGroup() as tasks:
        index = SearchIndex(database, blobs, threads, tasks)
        try:
            yield index
        finally:
            index.close()


def _pieces(entries: Sequence[StoredEntry]) -> Iterator[_Piece]:
    for entry in entries:
        texts = [text.text for text in texts_in(pb.EntryBody.FromString(entry.body))]
        for number, words in enumerate(pieces_of(texts)):
            yield _Piece(entry.seq, number, words)
