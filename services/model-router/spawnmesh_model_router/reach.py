"""The database for what no call may wait for: asked for a moment, and left alone for another one when it does not answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import psycopg
import structlog
from psycopg_pool import PoolClosed, PoolTimeout
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_postgres.database import Connection, Database

_WAIT_SECONDS = 0.5
_LOCK_SHARE = 0.6  # Of that time: who waits for a row is told so by a database that answers.
_TRY_AGAIN_SECONDS = 2.0
_ANSWERED = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
NOT_DONE = (psycopg.Error, PoolTimeout, PoolClosed, TimeoutError)
"""What work raises that the database did not do."""

log = structlog.get_logger()

T = TypeVar("T")
ItemT = TypeVar("ItemT")


class Reach:
    """Does work in transactions, at most `at_once` at a time. Who waits for the others' waits without the time of the database's running."""

    def __init__(self, database: Database, at_once: int) -> None:
        self._database = database
        self._turns = asyncio.Semaphore(at_once)
        self._away_until = 0.0
        self._given_up: set[asyncio.Task[Any]] = set()

    async def do(self, tenant_id: str, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Raises one of NOT_DONE. Where that is because the database does not answer, nobody tries for a moment."""
        async with self._turns:
            if monotonic_seconds() < self._away_until:
                raise PoolTimeout("the database was away a moment ago")
            task = asyncio.create_task(self._transact(tenant_id, work))
            try:
                await asyncio.wait({task}, timeout=_WAIT_SECONDS)
                if not task.done():
                    raise TimeoutError
                return task.result()
            except NOT_DONE as error:
                if not isinstance(error, _ANSWERED):
                    self._away_until = monotonic_seconds() + _TRY_AGAIN_SECONDS
                raise
            finally:
                if not task.done():
                    self._give_up(task)

    async def _transact(self, tenant_id: str, work: Callable[[Connection], Awaitable[T]]) -> T:
        async with self._database.pipelined(tenant_id) as connection:
            patience = f"{_WAIT_SECONDS * _LOCK_SHARE * 1000:.0f}ms"
            await connection.execute("select set_config('lock_timeout', %s, true)", (patience,))
            return await work(connection)

    def _give_up(self, task: asyncio.Task[Any]) -> None:
        """Ends the work without waiting for that: a silent server is given a second or two to cancel what it does."""
        task.cancel()
        self._given_up.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._given_up.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("given_up_work_failed", error=type(error).__name__)


class Together(Generic[ItemT, T]):
    """Work of one sort for a tenant, one piece at a time, and each for all who came while the one before was under way.

    `work` is given their items and gives a result for each.
    """

    def __init__(self, work: Callable[[str, list[ItemT]], Awaitable[list[T]]]) -> None:
        self._work = work
        self._waiting: dict[str, list[tuple[ItemT, asyncio.Future[T]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, tenant_id: str, item: ItemT) -> T:
        """The result for the item; raises what the work raised. It is done also where the caller is cancelled."""
        one: tuple[ItemT, asyncio.Future[T]] = (item, asyncio.get_running_loop().create_future())
        if tenant_id in self._waiting:
            self._waiting[tenant_id].append(one)
        else:
            self._waiting[tenant_id] = [one]
            task = asyncio.create_task(self._do_all(tenant_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await one[1]

    async def finish(self) -> None:
        """Returns when everything is done."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _do_all(self, tenant_id: str) -> None:
        while batch := self._waiting[tenant_id]:
            self._waiting[tenant_id] = []
            await self._do(tenant_id, batch)
        del self._waiting[tenant_id]

    async def _do(self, tenant_id: str, batch: list[tuple[ItemT, asyncio.Future[T]]]) -> None:
        try:
            results = await self._work(tenant_id, [item for item, _ in batch])
        except Exception as error:  # noqa: BLE001 - each of them is to hear it
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
