"""File work in threads, which a cancellation does not interrupt."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from spawnmesh_core.cancellation import shield_until_done

T = TypeVar("T")


async def finish_in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a thread and return its result.

    A cancellation takes effect when the thread is done: a thread cannot be stopped, and the
    workspace must not be removed while one uses it. So the work must be limited.
    """
    return await shield_until_done(asyncio.to_thread(work))
