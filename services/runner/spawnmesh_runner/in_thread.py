"""File work off the event loop, never abandoned half way."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from spawnmesh_core.cancellation import uninterrupted

T = TypeVar("T")


async def finish_in_thread(work: Callable[[], T]) -> T:
    """Runs blocking work in a thread and gives its result.

    A cancellation waits until the thread is done: nobody can stop it, and whoever removes the workspace next must find it at rest. So give
    it bounded work only.
    """
    return await uninterrupted(asyncio.to_thread(work))
