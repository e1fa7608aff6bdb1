"""Threads that read and render large requests.

There are few of them and they do nothing else. The bounds of a request keep each of their steps
short, so that the event loop has its turns meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from spawnmesh_core.cancellation import shield_until_done
from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy

from spawnmesh_model_router.domain.request_json import ToolSchema, read_schemas

INLINE_BYTES = 64 * 1024
"""Content up to this size is worked on by the event loop: it takes two milliseconds at most."""

_THREADS = 2
T = TypeVar("T")


class RequestThreads:
    """Run work on the content of requests, which tenants take in turn."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor
        self._limiter = FairLimiter(LimiterPolicy("request threads", "", _THREADS))

    async def run(self, tenant_id: str, size_bytes: int, work: Callable[[], T]) -> T:
        """Return what the work returns: done here for little content, or else in a thread.

        A cancellation takes effect when the thread is done: the work should be short.
        """
        if size_bytes <= INLINE_BYTES:
            return work()
        async with self._limiter.hold(tenant_id):
            return await shield_until_done(self._run_in_thread(work))

    async def read_schemas(
        self, tenant_id: str, schemas: Sequence[str], blocks: Sequence[str]
    ) -> list[ToolSchema | None]:
        """Read the schemas of tools as the domain's `read_schemas` does. Raises TooManyNodes."""
        size_bytes = sum(map(len, (*schemas, *blocks)))
        return await self.run(tenant_id, size_bytes, partial(read_schemas, schemas, blocks))

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


@asynccontextmanager
async def open_request_threads() -> AsyncIterator[RequestThreads]:
    """Open the threads. At the end of the block, running work finishes."""
    executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="request")
    try:
        yield RequestThreads(executor)
    finally:
        await asyncio.to_thread(executor.shutdown, cancel_futures=True)
