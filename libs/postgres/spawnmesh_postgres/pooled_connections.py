"""The connections of a pool: they are taken, measured, replaced and checked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

import psycopg
from psycopg_pool import PoolTimeout
from spawnmesh_core.dependency_watch import DependencyDown, DependencyFault

from spawnmesh_postgres.connection import BoundedCancelConnection, is_stale
from spawnmesh_postgres.errors import is_outdated_plan
from spawnmesh_postgres.pool_metrics import PoolMetrics
from spawnmesh_postgres.probed_pool import ProbedPool
from spawnmesh_postgres.rows import Row

Pooled = BoundedCancelConnection[Row]

# A server that answers makes a connection in milliseconds. The pool itself waits longer.
_CONNECT_WAIT_SECONDS = 1.5

# A server that answers does so in milliseconds.
_CHECK_SECONDS = 2.0


class PooledConnections:
    """Connections that callers take in turn. A connection that would fail them is replaced."""

    def __init__(self, pool: ProbedPool[Row], metrics: PoolMetrics) -> None:
        self._pool = pool
        self._metrics = metrics
        # The times of request and acquisition.
        self._in_use: dict[Pooled, tuple[float, float]] = {}
        self._renewed = 0.0  # The time since which all plans are those of the current schema.

    @property
    def in_use(self) -> int:
        """The number of connections in use."""
        return len(self._in_use)

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Pooled]:
        """Take a connection from the pool for the block.

        Raises OperationalError if no connection can be made although the pool is not exhausted, and
        ServerSilent at once while the server does not answer. A connection to a read-only server is
        closed, since a new one may lead to another server or start with other settings. After a
        migration that changed the columns of a prepared statement, all are replaced.
        """
        connection = await self.take()
        try:
            yield connection
        except psycopg.errors.FeatureNotSupported as error:
            if is_outdated_plan(error):
                await self.renew(connection)
            raise
        except psycopg.errors.ReadOnlySqlTransaction:
            await connection.close()
            raise
        finally:
            await self.give_back(connection)

    async def take(self, *, is_probe: bool = False) -> Pooled:
        """Take a connection from the pool until `give_back`. Raises as `use` does."""
        requested = perf_counter()
        # While none is in use, none will be returned: then a caller waits only for one to be made.
        wait_seconds = self._pool.timeout if self._in_use else min(self._pool.timeout, _CONNECT_WAIT_SECONDS)
        try:
            while is_stale(connection := await self._pool.getconn(wait_seconds)):
                await connection.close()
                await self._pool.putconn(connection)  # The pool replaces it.
        except PoolTimeout as error:
            if not is_probe:
                self._metrics.timed_out()
            if self.in_use < self._pool.max_size:
                raise psycopg.OperationalError("no connection could be made") from error
            raise
        connection.in_block = False  # The transaction before may have been rolled back.
        self._in_use[connection] = (requested, perf_counter())
        self._metrics.acquired()
        return connection

    async def renew(self, connection: Pooled) -> None:
        """Replace all connections, unless that happened since this one was taken."""
        _, acquired = self._in_use[connection]
        if acquired > self._renewed:
            self._renewed = perf_counter()
            await self._pool.drain()

    async def give_back(self, connection: Pooled) -> None:
        """Return a connection to the pool."""
        requested, acquired = self._in_use.pop(connection)
        self._metrics.released(waited_seconds=acquired - requested, used_seconds=perf_counter() - acquired)
        await self._pool.putconn(connection)

    async def check(self) -> None:
        """Raise DependencyDown if the server does not answer or accepts no writes.

        While every connection is in use it returns at once: a probe takes none from a request.
        """
        if self.in_use >= self._pool.max_size:
            return
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                is_read_only = await self._is_read_only()
        except (psycopg.OperationalError, PoolTimeout):
            raise DependencyDown(DependencyFault.UNREACHABLE) from None
        if is_read_only:
            raise DependencyDown(DependencyFault.READ_ONLY)

    async def _is_read_only(self) -> bool:
        connection = await self.take(is_probe=True)  # The metrics count requests that waited.
        try:
            row = await (await connection.execute("show transaction_read_only")).fetchone()
            is_read_only = row == {"transaction_read_only": "on"}
            if is_read_only:
                await connection.close()  # As in `use`.
            return is_read_only
        finally:
            await self.give_back(connection)
