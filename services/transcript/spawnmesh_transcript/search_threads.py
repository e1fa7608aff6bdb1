"""The threads in which searches work on texts: few, apart from all others, and left when nobody waits for them any more.

Whatever a search costs, it takes from other searches alone: appends, contexts and imports have the threads of the event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

from spawnmesh_core.clock import monotonic_seconds

_THREADS = 2
T = TypeVar("T")


class WorkTime:
    """How long threads may work for one call, waiting for a thread not counted, and whether anybody waits for it still."""

    def __init__(self, seconds: float) -> None:
        self._seconds_left = seconds
        self._start_time = 0.0
        self.is_abandoned = False

    def is_over(self) -> bool:
        """To be asked now and then by what works."""
        return self.is_abandoned or monotonic_seconds() - self._start_time >= self._seconds_left

    def spend_on(self, work: Callable[[], T]) -> T:
        """Does the work, at the cost of the time that it takes."""
        self._start_time = monotonic_seconds()
        try:
            return work()
        finally:
            self._seconds_left -= monotonic_seconds() - self._start_time


class Turns:
    """Who has entries in memory: so many at once, and one of each tenant, so that none takes all of them."""

    def __init__(self, count: int) -> None:
        self._all = asyncio.Semaphore(count)
        self._own: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, tenant_id: str) -> AsyncIterator[None]:
        """A turn of the tenant during the block, when it comes."""
        own = self._own.setdefault(tenant_id, asyncio.Lock())
        async with own, self._all:
            yield


class SearchThreads:
    """What searches have of this process."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor

    async def run(self, time: WorkTime, work: Callable[[], T]) -> T:
        """Does the work in a thread when one is free. A caller that is cancelled ends the work's time, and does not wait for it."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, time.spend_on, work)
        except asyncio.CancelledError:
            time.is_abandoned = True
            raise


@asynccontextmanager
async def open_search_threads() -> AsyncIterator[SearchThreads]:
    """Threads during the block; what they are at is waited for at its end, and what waits is not begun."""
    executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="search")
    try:
        yield SearchThreads(executor)
    finally:
        await asyncio.to_thread(executor.shutdown, cancel_futures=True)
