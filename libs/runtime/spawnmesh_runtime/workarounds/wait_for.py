"""Replace `asyncio.wait_for` with the implementation of Python 3.12.

Upstream: https://github.com/python/cpython/issues/86296, fixed in Python 3.12 by
https://github.com/python/cpython/pull/98518 and not backported.

Behaviour: `asyncio.wait_for` of Python 3.11 loses a cancellation that arrives in the same step in
which the awaited future completes. The task continues, and its owner waits for its end forever.

Why here: psycopg_pool calls `asyncio.wait_for`; a process that drains must end.

Remove it when Python 3.12 is the oldest supported version.
"""

import asyncio
import sys
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


def replace_wait_for() -> None:
    """Replace `asyncio.wait_for` for this process. Does nothing on Python 3.12 and later."""
    if sys.version_info < (3, 12):
        # The stub accepts fewer awaitables.
        asyncio.wait_for = _wait_for  # type: ignore[assignment]


async def _wait_for(awaitable: Awaitable[T], timeout: float | None) -> T:
    async with asyncio.timeout(timeout):
        return await awaitable
