"""Group commit: appends that arrive while others of their tenant commit share the next transaction.

An append goes at once if its tenant has no transaction in flight. Later ones wait until that
transaction ends, or until they are enough for another one beside it. Appends of one transaction
fail independently: no lock is waited for, and an append that would have to wait, whose key was
used, or that the database rejects is repeated by its caller alone, outside the queue.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass

import psycopg
from psycopg_pool import PoolTimeout
from spawnmesh_postgres.database import Database

from spawnmesh_transcript.domain.appends import Append, AppendResult
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.store import appends as append_store

WAIT_SECONDS = 3.0
"""The wait of an append for its start before it is refused, as for a connection."""

_FULL_BATCH = 4
"""So many appends of a tenant start another transaction beside the one in flight."""

# Limits of one transaction, so that no append waits long for it. A larger append does not queue.
_MAX_APPENDS = 16
_MAX_ENTRIES = 64
_MAX_BYTES = 256 * 1024


@dataclass(slots=True, eq=False)
class _PendingAppend:
    append: Append
    outcome: asyncio.Future[AppendResult | None]
    """None if the caller has to repeat the append alone."""
    is_started: bool = False

    def refuse(self) -> None:
        """Refuse the append, unless it has started."""
        if not self.is_started and not self.outcome.done():
            self.outcome.set_exception(PoolTimeout(f"not begun within {WAIT_SECONDS} seconds"))


class AppendQueue:
    """Commit appends in up to `slots` transactions at once, one for each transcript."""

    def __init__(self, database: Database, tasks: asyncio.TaskGroup, *, slots: int) -> None:
        self._database = database
        self._tasks = tasks
        self._free_slots = slots
        self._keys_in_flight: set[Key] = set()
        self._transactions: dict[str, int] = {}  # In flight, by tenant.
        # By tenant; the one served last is at the end.
        self._pending: dict[str, list[_PendingAppend]] = {}

    async def append(self, append: Append) -> AppendResult:
        """Make one append; it is durable on return.

        Raises PoolTimeout if it could not start within WAIT_SECONDS, and psycopg's errors.
        """
        if _fitting_count((append,)):
            result = await self._append_queued(append)
            return result or await append_store.append_alone(self._database, append)
        return await append_store.append_waiting(self._database, append)

    async def _append_queued(self, append: Append) -> AppendResult | None:
        """Make the append without waiting for locks; return None if it has to be repeated alone."""
        tenant_id = append.key.tenant_id
        if self._free_slots and tenant_id not in self._transactions:
            self._begin((append,))
            try:
                (outcome,) = await self._commit((append,))
            finally:
                self._end((append,))
            return None if outcome.is_busy else outcome
        loop = asyncio.get_running_loop()
        pending = _PendingAppend(append, loop.create_future())
        self._pending.setdefault(tenant_id, []).append(pending)
        self._start_batches()
        timeout = loop.call_later(WAIT_SECONDS, pending.refuse)
        try:
            return await pending.outcome
        finally:
            timeout.cancel()

    def _begin(self, appends: Sequence[Append]) -> None:
        tenant_id = appends[0].key.tenant_id
        self._free_slots -= 1
        self._transactions[tenant_id] = self._transactions.get(tenant_id, 0) + 1
        self._keys_in_flight.update(append.key for append in appends)

    def _end(self, appends: Sequence[Append]) -> None:
        tenant_id = appends[0].key.tenant_id
        self._free_slots += 1
        if others := self._transactions.pop(tenant_id) - 1:
            self._transactions[tenant_id] = others
        self._keys_in_flight.difference_update(append.key for append in appends)
        self._start_batches()

    def _start_batches(self) -> None:
        while self._free_slots and (batch := self._next_batch()):
            self._begin([pending.append for pending in batch])
            for pending in batch:
                pending.is_started = True
            # In an empty context: the caller that frees a slot is not the one that is served.
            self._tasks.create_task(self._commit_batch(batch), context=Context())

    def _next_batch(self) -> list[_PendingAppend]:
        """Return the next appends that share a transaction: of one tenant, whose rows alone it
        sees.
        """
        for tenant_id, pending in list(self._pending.items()):
            is_idle = tenant_id not in self._transactions
            if not is_idle and len(pending) < _FULL_BATCH:
                continue
            batch = self._fitting_batch(pending)
            if is_idle or len(batch) >= _FULL_BATCH:
                left = [one for one in pending if one not in batch and not one.outcome.done()]
                del self._pending[tenant_id]
                if left:
                    self._pending[tenant_id] = left
                if batch:
                    return batch
        return []

    def _fitting_batch(self, pending: Sequence[_PendingAppend]) -> list[_PendingAppend]:
        """Return as many appends to transcripts without an append in flight as one transaction
        takes. The first append to a transcript decides which others share its call.
        """
        ready: list[_PendingAppend] = []
        by_key: dict[Key, list[Append]] = {}
        for one in pending:
            if one.outcome.done() or one.append.key in self._keys_in_flight:
                continue
            sharing = by_key.setdefault(one.append.key, [])
            if all(map(one.append.can_share_call, sharing)):
                sharing.append(one.append)
                ready.append(one)
        return ready[: _fitting_count([one.append for one in ready])]

    async def _commit_batch(self, batch: Sequence[_PendingAppend]) -> None:
        appends = [pending.append for pending in batch]
        # Errors go to the callers, and never end the queue.
        (outcomes,) = await asyncio.gather(self._commit(appends), return_exceptions=True)
        for number, pending in enumerate(batch):
            if pending.outcome.done():  # The caller was cancelled.
                continue
            # The database fails, not one append.
            if isinstance(outcomes, psycopg.OperationalError):
                pending.outcome.set_exception(outcomes)
            # Nothing was stored.
            elif isinstance(outcomes, BaseException) or outcomes[number].is_busy:
                pending.outcome.set_result(None)
            else:
                pending.outcome.set_result(outcomes[number])
        self._end(appends)

    async def _commit(self, appends: Sequence[Append]) -> list[AppendResult]:
        """Commit the appends without waiting for locks."""
        return await append_store.append_batch(self._database, appends[0].key.tenant_id, appends)


def _fitting_count(appends: Sequence[Append]) -> int:
    """Return how many of the first appends fit in one transaction."""
    entry_count = size_bytes = 0
    for number, append in enumerate(appends[:_MAX_APPENDS]):
        entry_count += len(append.entries)
        size_bytes += sum(len(entry.body) for entry in append.entries)
        if entry_count > _MAX_ENTRIES or size_bytes > _MAX_BYTES:
            return number
    return min(len(appends), _MAX_APPENDS)


@asynccontextmanager
async def open_append_queue(database: Database, *, slots: int) -> AsyncIterator[AppendQueue]:
    """Take appends during the block, and finish those in flight at its end."""
    async with asyncio.TaskGroup() as tasks:
        yield AppendQueue(database, tasks, slots=slots)
