"""The threads in which imports read files: few, apart from all others, so that what a file costs it takes from other imports alone."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from spawnmesh_transcript.long_lines import LongLines
from spawnmesh_transcript.search_threads import Turns

_THREADS = 2
T = TypeVar("T")


class ImportThreads:
    """A thread for one piece of work at a time: whoever has more stands in line for each, one of each tenant."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor
        self._turns = Turns(_THREADS)
        self.long_lines = LongLines()

    async def run(self, tenant_id: str, work: Callable[[], T]) -> T:
        """Does the work, which is short, when it is the tenant's turn."""
        async with self._turns.of(tenant_id):
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)


@asynccontextmanager
async def open_import_threads() -> AsyncIterator[ImportThreads]:
    """Threads during the block; what they are at is waited for at its end, and what waits is not begun."""
    executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="import")
    try:
        yield ImportThreads(executor)
    finally:
        await asyncio.to_thread(executor.shutdown, cancel_futures=True)
