"""Threads that verify and compact: work on many entries for which no append and no context waits.

There are few of them and they do nothing else, and a tenant has one at a time. So the cost of a
verification is paid by other ones alone.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from spawnmesh_core.cancellation import shield_until_done
from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy

_THREADS = 2
_MAX_WAITING = 1024
T = TypeVar("T")


class BulkThreads:
    """Run pieces of work in threads, one at a time for each tenant."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor
        self._limiter = FairLimiter(
            LimiterPolicy(
                "bulk threads",
                "too many verifications and compactions are in progress; call again later",
                _THREADS,
                tenant_capacity=1,
                max_waiting=_MAX_WAITING,
            )
        )

    async def run(self, tenant_id: str, work: Callable[[], T]) -> T:
        """Run the work, which should be short, once a thread is free for the tenant.

        A cancellation takes effect when the thread is done, so that a tenant never has two. Raises
        POOL_EXHAUSTED if too much waits.
        """
        async with self._limiter.hold(tenant_id):
            return await shield_until_done(self._run_in_thread(work))

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


@asynccontextmanager
async def open_bulk_threads() -> AsyncIterator[BulkThreads]:
    """Open the threads. At the end of the block, running work finishes."""
    executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="bulk")
    try:
        yield BulkThreads(executor)
    finally:
        await asyncio.to_thread(executor.shutdown, cancel_futures=True)
