"""Connections with bounded waits, and a check for connections that must be replaced."""

import asyncio
import select
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, waiting
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import QueryCanceled
from psycopg.pq import TransactionStatus
from psycopg.rows import Row
from psycopg.waiting import READY_NONE, READY_R

from spawnmesh_postgres.server_probe import SUSPICIOUS_SECONDS, Server, StatementLeft

_INTERVAL_SECONDS = 0.1
# A notification ends the wait of a connection that listens.
_LISTENING_INTERVAL_SECONDS = 2.0
# A statement suspects its server after the first number of intervals, twice that number and so on,
# but at least each time the second number have passed.
_SUSPICIOUS_INTERVALS = round(SUSPICIOUS_SECONDS / _INTERVAL_SECONDS)
_LONGEST_INTERVALS = 10 * _SUSPICIOUS_INTERVALS
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
    """A connection that leaves a silent server, and whose cancelled statements end within
    bounded time.

    A statement that waits while its `server` does not answer raises StatementLeft, and so does a
    listener. As after a lost connection, it is unknown whether a commit that was sent takes place.

    If a task is cancelled while it waits for a statement, the connection is closed, and the server
    ends the statement. In a transaction block whose commit was not sent, the connection first asks
    the server to cancel the statement, and stays open if that succeeds within 1.6 s. The driver
    itself takes up to ten seconds.

    A commit is never cancelled. If it waits for a synchronous standby, the server would end the
    wait and show the write to others, who could rely on it although a failover loses it.
    """

    in_block = False
    """True in a transaction block whose commit was not sent."""

    listens = False
    """True while it waits for notifications. Then it looks less often at its server."""

    server: Server | None = None
    """The server, if it is probed."""

    async def wait(
        self, gen: PQGen[RV], interval: float = _INTERVAL_SECONDS, timeout: float | None = None
    ) -> RV:
        """Wait for the server. Every operation of the connection calls this method."""
        if self.listens:
            interval = _LISTENING_INTERVAL_SECONDS
        try:
            watched = gen if self.server is None else self._watched(gen, self.server)
            return await waiting.wait_async(watched, self.pgconn.socket, interval=interval, timeout=timeout)
        except asyncio.CancelledError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                if self.in_block and not (self.server and self.server.is_silent):
                    await self._stop(gen)
                else:
                    self._give_up(gen)
            _close(gen)
            raise

    def _watched(self, gen: PQGen[RV], server: Server) -> PQGen[RV]:
        """Run the generator of the driver, which is resumed after each interval without an
        answer.
        """
        interval_count, limit = 0, _SUSPICIOUS_INTERVALS
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready & READY_R:
                    server.answer_count += 1
                elif ready == READY_NONE:
                    if server.is_silent:
                        self._give_up(gen)
                        raise StatementLeft
                    interval_count += 1
                    # An idle connection that listens waits as well.
                    if interval_count == limit and self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                        server.suspect()
                        limit += min(limit, _LONGEST_INTERVALS)
                wanted = gen.send(ready)
        except StopIteration as end:
            result: RV = end.value
            return result

    def _give_up(self, gen: PQGen[RV]) -> None:
        """Close the connection. The generator of the driver fails when it is closed after that, and
        would do so at any later time.
        """
        self.pgconn.finish()
        _close(gen)

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


def _close(gen: PQGen[Any]) -> None:
    """Close a generator of the driver. Its clean-up fails if the connection is closed."""
    with suppress(psycopg.Error):
        gen.close()


def is_stale(connection: BoundedCancelConnection[Any]) -> bool:
    """Return whether an idle connection must be replaced, for example after a restart of the
    server.

    Its server may be silent. An idle connection receives input only if the server closes it or
    changes a setting that it reports. The check costs no round trip.
    """
    if connection.server is not None and connection.server.is_silent:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
