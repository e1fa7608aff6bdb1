"""Work that is done to its end, whoever is cancelled meanwhile."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Does the work and gives its result. A cancellation waits until it is done, so give it bounded work only."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # One is enough.
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # an error nobody waits for any more is seen here, not complained of at exit
        raise
