"""Appends that come while others are being committed share the next transaction: one commit and one round trip for all of them.

An append that finds room goes at once. What shares a transaction shares no fate: a refusal is the outcome of one append, locks are not waited
for, and what cannot be made without waiting, or what the database stumbles over, its caller makes by itself, outside of the queue.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass

import psycopg
from psycopg_pool import PoolTimeout
from spawnmesh_postgres.database import Database

from spawnmesh_transcript import store
from spawnmesh_transcript.store import Append, AppendOutcome, Key

WAIT_SECONDS = 3.0
"""How long an append waits to be begun before it is refused, as for a connection."""

_MAX_APPENDS = 16
_MAX_ENTRIES = 64
_MAX_BYTES = (
    256 * 1024
)  # In one transaction, as the two above: nobody waits long for it. What is larger by itself does not queue.


@dataclass(slots=True, eq=False)
class _Waiting:
    append: Append
    outcome: asyncio.Future[AppendOutcome | None]


class AppendQueue:
    """Commits appends, up to `slots` transactions side by side and one at a time for each transcript."""

    def __init__(self, database: Database, tasks: asyncio.TaskGroup, *, slots: int) -> None:
        self._database = database
        self._tasks = tasks
        self._free = slots
        self._under_way: set[Key] = set()
        self._waiting: list[_Waiting] = []

    async def append(self, append: Append) -> AppendOutcome:
        """Makes one append; it is durable on return. Raises PoolTimeout where it could not be begun for WAIT_SECONDS, and psycopg's errors."""
        outcome = await self._queued(append) if _fits((append,)) else None
        if outcome is None:
            (outcome,) = await self._make((append,), waits=True)
        return outcome

    async def _queued(self, append: Append) -> AppendOutcome | None:
        """None where the append has to be made by itself."""
        if self._free and append.key not in self._under_way:
            self._begin((append,))
            try:
                (outcome,) = await self._make((append,), waits=False)
            finally:
                self._end((append,))
            return None if outcome.is_busy else outcome
        loop = asyncio.get_running_loop()
        waiting = _Waiting(append, loop.create_future())
        self._waiting.append(waiting)
        patience = loop.call_later(WAIT_SECONDS, self._give_up, waiting)
        try:
            return await waiting.outcome
        finally:
            patience.cancel()

    def _give_up(self, waiting: _Waiting) -> None:
        if waiting in self._waiting and not waiting.outcome.done():
            waiting.outcome.set_exception(PoolTimeout(f"not begun within {WAIT_SECONDS} seconds"))

    def _begin(self, appends: Iterable[Append]) -> None:
        self._free -= 1
        self._under_way.update(append.key for append in appends)

    def _end(self, appends: Iterable[Append]) -> None:
        self._free += 1
        self._under_way.difference_update(append.key for append in appends)
        while self._free and self._waiting and (batch := self._take()):
            self._begin(waiting.append for waiting in batch)
            # In no caller's context: whoever made room is not the one who is served.
            self._tasks.create_task(self._make_together(batch), context=Context())

    def _take(self) -> list[_Waiting]:
        """The next ones that may go together: of one tenant, since a transaction sees one tenant's rows only."""
        batch: list[_Waiting] = []
        left: list[_Waiting] = []
        for waiting in self._waiting:
            if waiting.outcome.done():  # Given up, by its caller or by us.
                continue
            append = waiting.append
            together = [*(one.append for one in batch), append]
            fits = append.key.tenant_id == together[0].key.tenant_id and _fits(together)
            (batch if fits and append.key not in self._under_way else left).append(waiting)
        self._waiting = left
        return batch

    async def _make_together(self, batch: Sequence[_Waiting]) -> None:
        appends = [waiting.append for waiting in batch]
        # What is raised is for the callers, and never ends the queue.
        (outcomes,) = await asyncio.gather(self._make(appends, waits=False), return_exceptions=True)
        for number, waiting in enumerate(batch):
            if waiting.outcome.done():  # Its caller is gone.
                continue
            if isinstance(outcomes, psycopg.OperationalError):  # Of the database, not of what one of them brought.
                waiting.outcome.set_exception(outcomes)
            elif isinstance(outcomes, BaseException) or outcomes[number].is_busy:  # Nothing was stored.
                waiting.outcome.set_result(None)
            else:
                waiting.outcome.set_result(outcomes[number])
        self._end(appends)

    async def _make(self, appends: Sequence[Append], *, waits: bool) -> list[AppendOutcome]:
        return await store.append_entries(self._database, appends[0].key.tenant_id, appends, waits=waits)


def _fits(appends: Sequence[Append]) -> bool:
    """Whether they are little enough for one transaction."""
    entry_count = size_bytes = 0
    for append in appends:
        entry_count += len(append.entries)
        for entry in append.entries:
            size_bytes += len(entry.body)
    return len(appends) <= _MAX_APPENDS and entry_count <= _MAX_ENTRIES and size_bytes <= _MAX_BYTES


@asynccontextmanager
async def open_append_queue(database: Database, *, slots: int) -> AsyncIterator[AppendQueue]:
    """Takes appends during the block, at whose end those under way are finished."""
    async with asyncio.TaskGroup() as tasks:
        yield AppendQueue(database, tasks, slots=slots)
