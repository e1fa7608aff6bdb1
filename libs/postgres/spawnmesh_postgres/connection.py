"""A connection that does not wait for a silent server when its caller has given up."""

import asyncio
from typing import TypeVar

import psycopg
from psycopg import AsyncConnection, waiting
from psycopg.abc import PQGen
from psycopg.errors import QueryCanceled
from psycopg.pq import TransactionStatus
from psycopg.rows import Row

_INTERVAL_SECONDS = 0.1
_CANCEL_SECONDS = 0.8  # Twice this long at most; a server that is there takes milliseconds to stop a statement.

RV = TypeVar("RV")


class ImpatientConnection(AsyncConnection[Row]):
    """As the driver's own; where a cancelled task waits for a statement and the server does not stop it at once, the connection is closed.

    The driver itself asks for five seconds, and for five more waits for what comes of it.
    """

    async def wait(self, gen: PQGen[RV], interval: float = _INTERVAL_SECONDS, timeout: float | None = None) -> RV:
        """What all that is asked of the server goes through."""
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval=interval, timeout=timeout)
        except asyncio.CancelledError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                await self._stop(gen)
            raise

    async def _stop(self, gen: PQGen[RV]) -> None:
        """The connection is idle again afterwards, or closed."""
        try:
            await self.cancel_safe(timeout=_CANCEL_SECONDS)
            await waiting.wait_async(gen, self.pgconn.socket, interval=_INTERVAL_SECONDS, timeout=_CANCEL_SECONDS)
        except QueryCanceled:
            pass
        except psycopg.Error:
            self.pgconn.finish()
        except BaseException:
            self.pgconn.finish()
            raise
