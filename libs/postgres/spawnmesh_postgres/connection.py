"""Connections with bounded waits, and a check for connections that must be replaced."""

import asyncio
import select
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, waiting
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import QueryCanceled
from psycopg.pq import TransactionStatus
from psycopg.rows import Row

_INTERVAL_SECONDS = 0.1
# At most twice this time; a server that answers stops a statement in milliseconds.
_CANCEL_SECONDS = 0.8

# A machine that vanishes closes no connection: without these, the kernel waits for minutes or
# hours. A server that lives acknowledges within milliseconds, and connects within a second.
_TIMEOUTS = {
    "connect_timeout": "3",  # Seconds for each host.
    "tcp_user_timeout": "5000",  # Milliseconds until sent data is acknowledged.
    # An idle connection is found dead after six seconds.
    "keepalives_idle": "5",
    "keepalives_interval": "1",
    "keepalives_count": "5",
}

RV = TypeVar("RV")


def with_timeouts(dsn: str) -> str:
    """Return the DSN with timeouts that find a server which has vanished.

    Those that the DSN sets are kept. Every connection of the mesh is made with them.
    """
    given = conninfo_to_dict(dsn)
    return make_conninfo(dsn, **{name: value for name, value in _TIMEOUTS.items() if name not in given})


class BoundedCancelConnection(AsyncConnection[Row]):
    """A connection whose cancelled statements end within bounded time.

    If a task is cancelled while it waits for a statement, the connection is closed, and the server
    ends the statement. In a transaction block whose commit was not sent, the connection first asks
    the server to cancel the statement, and stays open if that succeeds within 1.6 s. The driver
    itself takes up to ten seconds.

    A commit is never cancelled. If it waits for a synchronous standby, the server would end the
    wait and show the write to others, who could rely on it although a failover loses it.
    """

    in_block = False
    """True in a transaction block whose commit was not sent."""

    async def wait(
        self, gen: PQGen[RV], interval: float = _INTERVAL_SECONDS, timeout: float | None = None
    ) -> RV:
        """Wait for the server. Every operation of the connection calls this method."""
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval=interval, timeout=timeout)
        except asyncio.CancelledError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                if self.in_block:
                    await self._stop(gen)
                else:
                    self.pgconn.finish()
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
