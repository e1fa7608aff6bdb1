"""Cancellation that is not lost on its way."""

import asyncio
import sys
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def keep_cancellations() -> None:
    """Gives this process an `asyncio.wait_for` that loses no cancellation, as Python 3.12 and later have it.

    The one before loses a cancellation that meets the end of what is waited for: its task goes on, and whoever waits for its end waits for
    ever. Connection pools and the job queue wait by it.
    """
    if sys.version_info < (3, 12):
        asyncio.wait_for = _wait_for  # type: ignore[assignment]  # Theirs also takes what is no coroutine, and so does this.


async def _wait_for(waited_for: Awaitable[T], timeout: float | None) -> T:
    async with asyncio.timeout(timeout):
        return await waited_for


def heed_cancellation() -> None:
    """Raises CancelledError where the running task was told to end.

    For a loop that goes on after an error: an error may have taken the place of the cancellation, as it does where a task group of Python 3.11
    is cancelled while one of its tasks fails, or where what is cleaned up on the way out fails in its turn.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. A cancellation that comes meanwhile is raised when the work is done, not before; it must have an end of its own."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # One is enough.
                await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # Looked at here; the caller, who is gone, cannot.
        raise
