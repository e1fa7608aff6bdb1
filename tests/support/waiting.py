"""Waits for conditions."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")

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


def _source_of(condition: Callable[[], object]) -> str:
    while isinstance(condition, partial):
        condition = condition.func
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):
        return repr(condition)
