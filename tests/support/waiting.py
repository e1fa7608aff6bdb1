"""Waits for conditions."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.005, 0.05


async def eventually(condition: Callable[[], T | Awaitable[T]], *, within_seconds: float = 60.0) -> T:
    """Call the condition until it returns something true, and return that.

    Raises AssertionError with the source of the condition if it does not hold in time.
    """
    pause = _FIRST_PAUSE_SECONDS
    try:
        async with asyncio.timeout(within_seconds) as limit:
            while True:
                held = condition()
                value: T = await held if inspect.isawaitable(held) else held
                if value:
                    return value
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
    except TimeoutError:
        if not limit.expired():
            raise
        raise AssertionError(f"not true within {within_seconds:g} s: {_source_of(condition)}") from None


async def time_left_in(period: float, seconds: float = 15.0) -> None:
    """Return when so many seconds are left of the calendar minute, hour or day of UTC: at once, or
    in the next.

    What is counted for each minute, hour or day begins again with the next one. A test that counts
    would otherwise fail now and then.
    """
    left = period - time.time() % period
    if left < seconds:
        await asyncio.sleep(left + 0.1)


def _source_of(condition: Callable[[], object]) -> str:
    while isinstance(condition, partial):
        condition = condition.func
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):
        return repr(condition)
