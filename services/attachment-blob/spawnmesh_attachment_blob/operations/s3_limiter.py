"""Limits the transactions that wait for S3."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class S3TransactionLimiter:
    """Reserves half of the database connections for transactions that do not wait for S3.

    A slow S3 therefore does not stop calls that need only rows. Acquire the limiter before a
    connection, so that a transaction that holds locks while it waits for S3 needs nothing more.
    """

    def __init__(self, database_max_connections: int) -> None:
        self._semaphore = asyncio.Semaphore(max(1, database_max_connections // 2))

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[None]:
        """Hold one permit for the block."""
        async with self._semaphore:
            yield
