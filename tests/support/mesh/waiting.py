"""Waiting for what becomes true."""

import asyncio
from collections.abc import Awaitable, Callable


async def eventually(condition: Callable[[], Awaitable[bool]], *, within_seconds: float = 20.0) -> None:
    """Returns when the condition holds; fails when it does not within the time."""
    async with asyncio.timeout(within_seconds):
        while not await condition():
            await asyncio.sleep(0.05)
