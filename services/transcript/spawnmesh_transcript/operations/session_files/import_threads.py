"""Threads that read session files.

There are few of them and they do nothing else, so that the cost of a file is paid by other imports
alone.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from spawnmesh_runtime.cpu_workers import INLINE_BYTES, CpuWorkers
from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy

from spawnmesh_transcript.operations.session_files.long_line_limiter import LongLineLimiter

_THREADS = 2
T = TypeVar("T")


class ImportThreads:
    """Run short pieces of work in threads, one at a time for each tenant."""

    def __init__(self, executor: ThreadPoolExecutor, workers: CpuWorkers) -> None:
        self._executor = executor
        self.workers = workers
        self._limiter = FairLimiter(LimiterPolicy("import threads", "", _THREADS, tenant_capacity=1))
        self.long_lines = LongLineLimiter()

    async def run_in_thread(self, tenant_id: str, work: Callable[[], T]) -> T:
        """Run the work, which should be short, once a thread is free for the tenant."""
        async with self._limiter.hold(tenant_id):
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def read(self, tenant_id: str, size_bytes: int, work: Callable[[], T]) -> T:
        """Read lines of a file, in a worker process if they are large. `work` can be pickled.

        Raises what `CpuWorkers.run` raises.
        """
        if size_bytes <= INLINE_BYTES:
            return await self.run_in_thread(tenant_id, work)
        return await self.workers.run(tenant_id, size_bytes, work)


@asynccontextmanager
async def open_import_threads(workers: CpuWorkers) -> AsyncIterator[ImportThreads]:
    """Open the threads.

    At the end of the block, running work finishes and queued work is cancelled.
    """
    executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="import")
    try:
        yield ImportThreads(executor, workers)
    finally:
        await asyncio.to_thread(executor.shutdown, cancel_futures=True)
