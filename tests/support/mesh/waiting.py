"""Wait for a condition."""

import asyncio
from collections.abc import Awaitable, Callable


async def eventually(condition: Callable[[], Awaitable[bool]], *, within_seconds: float = 20.0) -> None:
    """Return when the condition holds; raise TimeoutError if it does not within the time."""
    async with asyncio.timeout(within_seconds):
        while not await condition():
            await asyncio.sleep(0.05)
