"""File work off the event loop, never abandoned half way."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def finish_in_thread(work: Callable[[], T]) -> T:
    """Runs blocking work in a thread and gives its result.

    A cancellation waits until the thread is done: nobody can stop it, and whoever removes the workspace next must find it at rest. So give
    it bounded work only.
    """
    thread = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        while not thread.done():
            with suppress(asyncio.CancelledError):  # One is enough.
                await asyncio.wait([thread])
        if not thread.cancelled():
            thread.exception()  # an error nobody waits for any more is seen here, not complained of at exit
        raise
