"""Reads the entries that no search has read yet.

The reading goes on when its caller's time is over, once for each transcript in this process: the next call finds what was read meanwhile,
however long a single entry takes.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from typing import NamedTuple

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import not_found, unavailable
from spawnmesh_postgres.database import Database

from spawnmesh_transcript import search_store
from spawnmesh_transcript.domain.entries import StoredEntry
from spawnmesh_transcript.domain.words import pieces_of
from spawnmesh_transcript.operations import list_entries
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.search_store import Indexed
from spawnmesh_transcript.search_threads import SearchThreads, Turns, WorkTime
from spawnmesh_transcript.store import Filter, Key, Position
from spawnmesh_transcript.texts import texts_in

_PAGE_SIZE = 500
_PAGES_AT_ONCE = 2  # Of all transcripts: a page and its pieces take some ten times its bytes.
_STEP_SECONDS = 0.2  # After which a thread is left to whoever else waits for it.
_RETRY_SECONDS = 0.1


class _Piece(NamedTuple):
    seq: int
    number: int
    words: str


class SearchIndex:
    """The words of transcripts, as far as searches have read them."""

    def __init__(
        self, database: Database, payloads: Payloads, threads: SearchThreads, tasks: asyncio.TaskGroup
    ) -> None:
        self._database = database
        self._payloads = payloads
        self._threads = threads
        self._tasks = tasks
        self._turns = Turns(_PAGES_AT_ONCE)
        self._under_way: dict[Key, asyncio.Task[Exception | None]] = {}
        self._is_closed = False

    async def read_up_to_head(self, key: Key, *, give_up_time: float) -> None:
        """All entries that were committed before are found afterwards.

        Raises DEPENDENCY_UNAVAILABLE at the time to give up (of the monotonic clock), and the reading goes on; NOT_FOUND, and what making
        entries whole raises.
        """
        wanted: int | None = None
        while True:
            known = await self._progress(key)
            wanted = known.head_seq if wanted is None else wanted
            if known.seq >= wanted:
                return
            task = self._reading(key)
            await asyncio.wait([task], timeout=max(0.0, give_up_time - monotonic_seconds()))
            if not task.done() or task.cancelled():
                raise unavailable("the words of this transcript", retry_after_seconds=_RETRY_SECONDS)
            if error := task.result():
                raise error

    def close(self) -> None:
        """Ends what is under way; entries that were read in part are read again by whoever needs them."""
        self._is_closed = True  # Waiting for a connection may swallow the cancellation.
        for task in self._under_way.values():
            task.cancel()

    def _reading(self, key: Key) -> "asyncio.Task[Exception | None]":
        task = self._under_way.get(key)
        if task is None:
            # In no caller's context: it goes on when the caller's time is over.
            task = self._tasks.create_task(self._read(key), name="read for searches", context=Context())
            self._under_way[key] = task
        return task

    async def _read(self, key: Key) -> Exception | None:
        """Up to the head, or to the error that those who wait for it hear."""
        try:
            while not self._is_closed:
                async with self._turns.of(key.tenant_id):
                    known = await self._progress(key)
                    if known.seq >= known.head_seq:
                        return None
                    await self._read_page(key, known)
        except Exception as error:  # noqa: BLE001 - each who waits for it raises it.
            return error
        finally:
            self._under_way.pop(key, None)
        return None

    async def _read_page(self, key: Key, known: Indexed) -> None:
        after = Position(known.seq)
        page = await list_entries(self._database, self._payloads, key, after, Filter(), page_size=_PAGE_SIZE)
        if not page.entries:
            raise not_found("transcript", key.session_id)
        pieces: list[_Piece] = []
        making = _pieces(page.entries)
        while some := await self._some(making):
            pieces += some
        async with self._database.transaction(key.tenant_id) as connection:
            await search_store.advance(connection, key, known, page.entries[-1].seq, pieces)

    async def _some(self, making: Iterator[_Piece]) -> list[_Piece]:
        """The next of them, as many as there is time for in one step; none behind the last."""
        step = WorkTime(_STEP_SECONDS)

        def make() -> list[_Piece]:
            made: list[_Piece] = []
            for piece in making:
                made.append(piece)
                if step.is_over():
                    break
            return made

        return await self._threads.run(step, make)

    async def _progress(self, key: Key) -> Indexed:
        async with self._database.transaction(key.tenant_id) as connection:
            known = await search_store.read_progress(connection, key)
        if known is None:
            raise not_found("transcript", key.session_id)
        return known


@asynccontextmanager
async def open_search_index(
    database: Database, payloads: Payloads, threads: SearchThreads
) -> AsyncIterator[SearchIndex]:
    """Reads transcripts during the block."""
    async with asyncio.TaskGroup() as tasks:
        index = SearchIndex(database, payloads, threads, tasks)
        try:
            yield index
        finally:
            index.close()


def _pieces(entries: Sequence[StoredEntry]) -> Iterator[_Piece]:
    for entry in entries:
        texts = [text.text for text in texts_in(pb.EntryBody.FromString(entry.body))]
        for number, words in enumerate(pieces_of(texts)):
            yield _Piece(entry.seq, number, words)
