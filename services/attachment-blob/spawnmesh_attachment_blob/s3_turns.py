"""Who may hold a database connection while waiting for S3."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class S3Turns:
    """Keeps half of the database's connections free of transactions that wait for S3, so that a slow S3 does not stop what needs rows alone.

    Take a turn before a connection: then who holds locks while it waits for S3 needs nothing that a waiter could have.
    """

    def __init__(self, database_max_connections: int) -> None:
        self._turns = asyncio.Semaphore(max(1, database_max_connections // 2))

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """One turn, for the block."""
        async with self._turns:
            yield
