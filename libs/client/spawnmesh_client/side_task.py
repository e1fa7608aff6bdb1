"""A task beside a run that informs watchers. It delays the end of the run a little, and never fails
it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

_log = logging.getLogger("spawnmesh_client.side_task")


@asynccontextmanager
async def side_task(
    work: Coroutine[object, object, None], close: Callable[[], None], name: str, last_seconds: float
) -> AsyncIterator[None]:
    """Do the work during the block. After it, `close` tells the work to end with the call that is
    under way, which gets `last_seconds`. Its connection would be lost if it was cancelled at once.
    """
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        close()
        try:
            await asyncio.wait({task}, timeout=last_seconds)
        finally:
            task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(ended, Exception):
            _log.error("failed to %s", name, exc_info=ended)
