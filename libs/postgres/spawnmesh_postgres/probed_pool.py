"""A pool that leaves a silent server."""

import asyncio
from typing import Any

from psycopg.rows import Row
from psycopg_pool import AsyncConnectionPool

from spawnmesh_postgres.connection import BoundedCancelConnection
from spawnmesh_postgres.hosts import Hosts
from spawnmesh_postgres.server_probe import SUSPICIOUS_SECONDS, Host, Server, ServerSilent

_RECONNECT_TIMEOUT_SECONDS = 1.0
"""After this time a pool gives up a connection, and the next caller tries at once. Since the pauses
between retries grow, a pool with a longer time would find a promoted server late."""

_LONGEST_PAUSE_SECONDS = 4.0


class ProbedPool(AsyncConnectionPool[BoundedCancelConnection[Row]]):
    """A pool of autocommit connections to the hosts of a DSN.

    While none of the hosts answers, `getconn` raises ServerSilent, also to the callers that wait.
    """

    def __init__(self, dsn: str, **options: Any) -> None:
        self._hosts = Hosts(dsn)
        self._servers = {host: self._server(host) for host in self._hosts.addresses}
        self._callers: dict[asyncio.Timeout, None] = {}  # Those that wait for a connection.
        self._look_timer: asyncio.TimerHandle | None = None
        super().__init__(
            self._hosts.dsn,
            connection_class=BoundedCancelConnection,
            configure=self._use,
            reconnect_timeout=_RECONNECT_TIMEOUT_SECONDS,
            **{**options, "open": False},
        )

    async def getconn(self, timeout: float | None = None) -> BoundedCancelConnection[Row]:
        """Take a connection. Raises ServerSilent."""
        if self._is_away():
            raise ServerSilent
        left = asyncio.timeout(None)
        self._callers[left] = None
        if self._look_timer is None:
            self._look_later(SUSPICIOUS_SECONDS)
        try:
            async with left:
                return await super().getconn(timeout)
        except TimeoutError:
            raise ServerSilent from None
        finally:
            del self._callers[left]

    async def close(self, timeout: float = 5.0) -> None:
        """Close the pool, and stop probing."""
        await super().close(timeout)
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    async def _use(self, connection: BoundedCancelConnection[Row]) -> None:
        """Prepare a new connection."""
        self._hosts.prefer(connection)
        address = self._hosts.address_of(connection)
        connection.server = self._servers.setdefault(address, self._server(address))
        await connection.set_autocommit(True)

    def _server(self, host: Host) -> Server:
        return Server(host, self._leave)

    def _is_away(self) -> bool:
        """Return whether no host answers."""
        return bool(self._servers) and all(server.is_silent for server in self._servers.values())

    def _leave(self, host: Host) -> None:
        self._hosts.avoid(host)
        if self._is_away():
            now = asyncio.get_running_loop().time()
            for left in self._callers:
                left.reschedule(now)

    def _look_later(self, pause: float) -> None:
        first = next(iter(self._callers))
        self._look_timer = asyncio.get_running_loop().call_later(pause, self._look, pause, first)

    def _look(self, pause: float, first: asyncio.Timeout) -> None:
        """Suspect every host if a caller has waited since the last look."""
        self._look_timer = None
        if first in self._callers:
            for server in self._servers.values():
                server.suspect()
            self._look_later(min(pause * 2, _LONGEST_PAUSE_SECONDS))
        elif self._callers:
            self._look_later(SUSPICIOUS_SECONDS)
