"""Threads in which searches work on texts.

There are few of them and they do nothing else: the cost of a search is paid by other searches
alone. Appends, contexts and imports have other threads.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from spawnmesh_core.clock import monotonic_seconds

_THREADS = 2
T = TypeVar("T")


class WorkBudget:
    """The seconds that threads may work for one call.

    Time in the queue for a thread does not count.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds_left = seconds
        self._start_time = 0.0
        self.is_abandoned = False
        """True if the caller was cancelled."""

    def is_spent(self) -> bool:
        """Return whether the work should stop. The work asks now and then."""
        return self.is_abandoned or monotonic_seconds() - self._start_time >= self._seconds_left

    def spend_on(self, work: Callable[[], T]) -> T:
        """Do the work and subtract its duration."""
        self._start_time = monotonic_seconds()
        try:
            return work()
        finally:
            self._seconds_left -= monotonic_seconds() - self._start_time


class SearchThreads:
    """Run the work of searches in threads."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor

    async def run_in_thread(self, budget: WorkBudget, work: Callable[[], T]) -> T:
        """Do the work in a thread.

        A caller that is cancelled ends the budget and does not wait for the work.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, budget.spend_on, work)
        except asyncio.CancelledError:
            budget.is_abandoned = True
            raise


@asynccontextmanager
async def open_search_threads() -> AsyncIterator[SearchThreads]:
    """Open the threads.

    At the end of the block, running work finishes and queued work is cancelled.
    """
    executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="search")
    try:
        yield SearchThreads(executor)
    finally:
        await asyncio.to_thread(executor.shutdown, cancel_futures=True)
