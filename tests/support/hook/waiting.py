"""Waits for conditions."""

import asyncio
from collections.abc import Callable


async def eventually(holds: Callable[[], bool], *, within_seconds: float = 20.0) -> None:
    """Return once the condition holds. Raises TimeoutError if it does not hold in time."""
    async with asyncio.timeout(within_seconds):
        while not holds():
            await asyncio.sleep(0.01)
