"""Connections with bounded waits, and a check for connections that must be replaced."""

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
# At most twice this time; a server that answers stops a statement in milliseconds.
_CANCEL_SECONDS = 0.8

RV = TypeVar("RV")


class BoundedCancelConnection(AsyncConnection[Row]):
    """A connection whose cancelled statements end within bounded time.

    If a task is cancelled while it waits for a statement, the connection asks the server to cancel
    the statement. If the server does not stop it within 1.6 s, the connection is closed. The driver
    itself takes up to ten seconds.
    """

    async def wait(
        self, gen: PQGen[RV], interval: float = _INTERVAL_SECONDS, timeout: float | None = None
    ) -> RV:
        """Wait for the server. Every operation of the connection calls this method."""
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval=interval, timeout=timeout)
        except asyncio.CancelledError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                await self._stop(gen)
            raise

    async def _stop(self, gen: PQGen[RV]) -> None:
        """Stop the statement, and leave the connection idle or closed."""
        try:
            await self.cancel_safe(timeout=_CANCEL_SECONDS)
            await waiting.wait_async(
                gen, self.pgconn.socket, interval=_INTERVAL_SECONDS, timeout=_CANCEL_SECONDS
            )
        except QueryCanceled:
            pass
        except psycopg.Error:
            self.pgconn.finish()
        except BaseException:
            self.pgconn.finish()
            raise


def is_stale(connection: AsyncConnection[Any]) -> bool:
    """Return whether an idle connection must be replaced, for example after a restart of the
    server.

     An idle connection receives input only if the server closes it or changes a setting that it
    reports. The check costs no round trip.
    """
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
