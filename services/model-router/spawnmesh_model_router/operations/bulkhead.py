"""A bulkhead and a circuit breaker in front of the database, for work that must not delay
a call.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg
import structlog
from psycopg_pool import PoolClosed, PoolTimeout
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_postgres.database import Connection, Database

# Share of the timeout for row locks: then a reachable database reports the wait itself.
_LOCK_SHARE = 0.6
_OPEN_SECONDS = 2.0
_ANSWERED = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)
UNAVAILABLE = (psycopg.Error, PoolTimeout, PoolClosed, TimeoutError)
"""The errors of work that the database did not do."""

log = structlog.get_logger()

T = TypeVar("T")


class DatabaseBulkhead:
    """Runs short transactions, at most `max_concurrent` at a time.

    Time in the queue does not count against the timeout. If the database does not answer, the
    circuit breaker opens: for 2 s, work fails without being tried.
    """

    def __init__(self, database: Database, max_concurrent: int, timeout_seconds: float) -> None:
        self._database = database
        self._timeout_seconds = timeout_seconds
        lock_milliseconds = timeout_seconds * _LOCK_SHARE * 1000
        self._set_lock_timeout = f"set local lock_timeout = {lock_milliseconds:.0f}".encode()
        self._slots = asyncio.Semaphore(max_concurrent)
        self._open_until = 0.0
        # `finish` owns these tasks. A TaskGroup would end the service when one of them fails.
        self._abandoned: set[asyncio.Task[Any]] = set()

    async def execute(self, tenant_id: str, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do the work in a transaction of the tenant. Raises one of UNAVAILABLE."""
        async with self._slots:
            if monotonic_seconds() < self._open_until:
                raise PoolTimeout("the database did not answer a moment ago")
            task = asyncio.create_task(self._transact(tenant_id, work))
            try:
                await asyncio.wait({task}, timeout=self._timeout_seconds)
                if not task.done():
                    raise TimeoutError
                return task.result()
            except UNAVAILABLE as error:
                if not isinstance(error, _ANSWERED):
                    self._open_until = monotonic_seconds() + _OPEN_SECONDS
                raise
            finally:
                if not task.done():
                    self._abandon(task)

    async def finish(self) -> None:
        """Wait until the abandoned work has ended: a second or two if the server is silent."""
        await asyncio.gather(*self._abandoned, return_exceptions=True)

    async def _transact(self, tenant_id: str, work: Callable[[Connection], Awaitable[T]]) -> T:
        async with self._database.pipelined(tenant_id) as connection:
            # In a message of its own, and no function: so Citus repeats it on the workers.
            await connection.execute(self._set_lock_timeout, prepare=False)
            return await work(connection)

    def _abandon(self, task: asyncio.Task[Any]) -> None:
        """Cancel the task without waiting: a silent server gets a second or two to cancel
        its work.
        """
        task.cancel()
        self._abandoned.add(task)
        task.add_done_callback(self._discard)

    def _discard(self, task: asyncio.Task[Any]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("abandoned_work_failed", error=type(error).__name__)
