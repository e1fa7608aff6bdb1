"""Connections that do not wait for a silent server when their caller has given up, and whether one has been closed meanwhile."""

import asyncio
import select
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, waiting
from psycopg.abc import PQGen
from psycopg.errors import QueryCanceled
from psycopg.pq import TransactionStatus
from psycopg.rows import Row

_INTERVAL_SECONDS = 0.1
_CANCEL_SECONDS = 0.8  # Twice this long at most; a server that is there takes milliseconds to stop a statement.

_LAST_WORDS = 4  # What a server says before it closes a connection, and its end, come in fewer reads.

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


def is_gone(connection: AsyncConnection[Any]) -> bool:
    """Whether the server closed the connection while it was idle, as a restart does: then no call has to fail to find that out.

    Costs no round trip: on a connection that waits for nothing, there is hardly anything to read but its end.
    """
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    try:
        for _ in range(_LAST_WORDS):
            if not waiting.poll(0):
                return False
            connection.pgconn.consume_input()
    except psycopg.OperationalError:
        return True
    return False
