"""Appends that come while others of their tenant are being committed share the next transaction: one commit and one round trip for all of them.

An append whose tenant has no transaction under way goes at once. What comes meanwhile waits until that one ends, or until it is enough for
another one beside it. What shares a transaction shares no fate: locks are not waited for, and what cannot be made without waiting, what a rule
stands against, or what the database stumbles over, its caller makes, or hears refused, by itself, outside of the queue.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass

import psycopg
from psycopg_pool import PoolTimeout
from spawnmesh_postgres.database import Database

from spawnmesh_transcript import store
from spawnmesh_transcript.plain_appends import append_plain, are_plain
from spawnmesh_transcript.store import Append, AppendOutcome, Key

WAIT_SECONDS = 3.0
"""How long an append waits to be begun before it is refused, as for a connection."""

_ENOUGH = 4
"""So many of a tenant go in another transaction beside the one that is under way."""

_MAX_APPENDS = 16
_MAX_ENTRIES = 64
_MAX_BYTES = (
    256 * 1024
)  # In one transaction, as the two above: nobody waits long for it. What is larger by itself does not queue.


@dataclass(slots=True, eq=False)
class _Waiting:
    append: Append
    outcome: asyncio.Future[AppendOutcome | None]
    is_begun: bool = False

    def give_up(self) -> None:
        """Refuses it, unless it is being made."""
        if not self.is_begun and not self.outcome.done():
            self.outcome.set_exception(PoolTimeout(f"not begun within {WAIT_SECONDS} seconds"))


class AppendQueue:
    """Commits appends, up to `slots` transactions side by side and one at a time for each transcript."""

    def __init__(self, database: Database, tasks: asyncio.TaskGroup, *, slots: int) -> None:
        self._database = database
        self._tasks = tasks
        self._free = slots
        self._under_way: set[Key] = set()
        self._transactions: dict[str, int] = {}  # Under way, by tenant.
        self._waiting: dict[str, list[_Waiting]] = {}  # By tenant, whoever was served last at the end.

    async def append(self, append: Append) -> AppendOutcome:
        """Makes one append; it is durable on return. Raises PoolTimeout where it could not be begun for WAIT_SECONDS, and psycopg's errors."""
        outcome = await self._queued(append) if _fitting((append,)) else None
        if outcome is None:
            (outcome,) = await self._make((append,), waits=True)
        return outcome

    async def _queued(self, append: Append) -> AppendOutcome | None:
        """None where the append has to be made by itself."""
        tenant_id = append.key.tenant_id
        if self._free and tenant_id not in self._transactions:
            self._begin((append,))
            try:
                (outcome,) = await self._make((append,), waits=False)
            finally:
                self._end((append,))
            return None if outcome.is_busy else outcome
        loop = asyncio.get_running_loop()
        waiting = _Waiting(append, loop.create_future())
        self._waiting.setdefault(tenant_id, []).append(waiting)
        self._begin_next()
        patience = loop.call_later(WAIT_SECONDS, waiting.give_up)
        try:
            return await waiting.outcome
        finally:
            patience.cancel()

    def _begin(self, appends: Sequence[Append]) -> None:
        tenant_id = appends[0].key.tenant_id
        self._free -= 1
        self._transactions[tenant_id] = self._transactions.get(tenant_id, 0) + 1
        self._under_way.update(append.key for append in appends)

    def _end(self, appends: Sequence[Append]) -> None:
        tenant_id = appends[0].key.tenant_id
        self._free += 1
        if others := self._transactions.pop(tenant_id) - 1:
            self._transactions[tenant_id] = others
        self._under_way.difference_update(append.key for append in appends)
        self._begin_next()

    def _begin_next(self) -> None:
        while self._free and (batch := self._take()):
            self._begin([waiting.append for waiting in batch])
            for waiting in batch:
                waiting.is_begun = True
            # In no caller's context: whoever made room is not the one who is served.
            self._tasks.create_task(self._make_together(batch), context=Context())

    def _take(self) -> list[_Waiting]:
        """The next ones that may go together: of one tenant, since a transaction sees one tenant's rows only."""
        for tenant_id, waiting in list(self._waiting.items()):
            is_idle = tenant_id not in self._transactions
            if not is_idle and len(waiting) < _ENOUGH:
                continue
            batch = self._together(waiting)
            if is_idle or len(batch) >= _ENOUGH:
                left = [one for one in waiting if one not in batch and not one.outcome.done()]
                del self._waiting[tenant_id]
                if left:
                    self._waiting[tenant_id] = left
                if batch:
                    return batch
        return []

    def _together(self, waiting: Sequence[_Waiting]) -> list[_Waiting]:
        """Those of one tenant whose transcripts nobody is writing, as many as one transaction takes; not those that were given up."""
        ready = [one for one in waiting if not one.outcome.done() and one.append.key not in self._under_way]
        return ready[: _fitting([one.append for one in ready])]

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
        tenant_id = appends[0].key.tenant_id
        if not waits and are_plain(appends):
            return await append_plain(self._database, tenant_id, appends)
        return await store.append_entries(self._database, tenant_id, appends, waits=waits)


def _fitting(appends: Sequence[Append]) -> int:
    """How many of the first ones are little enough for one transaction."""
    entry_count = size_bytes = 0
    for number, append in enumerate(appends[:_MAX_APPENDS]):
        entry_count += len(append.entries)
        size_bytes += sum(len(entry.body) for entry in append.entries)
        if entry_count > _MAX_ENTRIES or size_bytes > _MAX_BYTES:
            return number
    return min(len(appends), _MAX_APPENDS)


@asynccontextmanager
async def open_append_queue(database: Database, *, slots: int) -> AsyncIterator[AppendQueue]:
    """Takes appends during the block, at whose end those under way are finished."""
    async with asyncio.TaskGroup() as tasks:
        yield AppendQueue(database, tasks, slots=slots)
