"""Cancellation that is not lost on its way."""

import asyncio
import sys
from collections.abc import Awaitable
from typing import TypeVar

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


def raise_if_cancelled() -> None:
    """Raises CancelledError where the current task was cancelled and does not know.

    A cancellation that meets the end of what its task waits for may be lost there, as in `asyncio.wait_for`, by which database connections wait.
    A loop without an end asks here in every round, or it would never hear of it.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
