"""Connections to a service's own database, and transactions that see one tenant's rows only."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import psycopg
from opentelemetry.metrics import Meter, NoOpMeter
from psycopg import AsyncClientCursor, AsyncConnection
from psycopg.pq import PipelineStatus
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout
from spawnmesh_core.ids import TENANT_ID

from spawnmesh_postgres.connection import ImpatientConnection, is_gone
from spawnmesh_postgres.pool_metrics import PoolMetrics

Connection = AsyncConnection[DictRow]

EVERY_TENANT = "*"
"""Not a tenant: the scope in which a queue that serves all tenants reads the tables whose policies say so, and no others."""

SCOPE = "set_config('spawnmesh.tenant', %(tenant_id)s, true)"
"""In a statement for `Database.call`: scopes the transaction to the tenant, and is the tenant's id."""

_SET_SCOPE = f"select {SCOPE}"
_SET_SCOPE_AND_END = f"select {SCOPE}, set_config('transaction_timeout', %(end)s, true)"
_KNOWS_TRANSACTION_TIMEOUT = 170_000  # The versions before take a pipeline whose client is silent for one at work.

_ROLLBACK_SECONDS = 1.0  # Takes a server no time, unless it is silent; then the connection is worth nothing.

_NO_METER = NoOpMeter("spawnmesh")

_NOTIFY = "select pg_notify(%(channel)s, payload) from unnest(%(payloads)s::text[]) as payload"


def _check_scope(tenant_id: str) -> None:
    if tenant_id != EVERY_TENANT and TENANT_ID.fullmatch(tenant_id) is None:
        raise ValueError("a transaction needs a well-formed tenant id")


def _scope(tenant_id: str) -> str:
    # Nothing that passes needs more of a quote than these, and composing it would be most of what a begin costs here.
    _check_scope(tenant_id)
    return f"set local spawnmesh.tenant = '{tenant_id}'"


async def _roll_back(connection: Connection) -> None:
    """The connection is free of its transaction afterwards, or closed: what made the block fail is what its caller is to hear."""
    if connection.closed:
        return
    try:
        async with asyncio.timeout(_ROLLBACK_SECONDS):
            await connection.rollback()
    except (TimeoutError, psycopg.Error):
        await connection.close()


class Database:
    """A pool of connections as the service's own role, which row-level security binds."""

    def __init__(self, pool: AsyncConnectionPool[Connection], metrics: PoolMetrics) -> None:
        self._pool = pool
        self._metrics = metrics
        self._taken: dict[Connection, tuple[float, float]] = {}  # When it was asked for, and when it was had.

    @property
    def in_use(self) -> int:
        """How many connections somebody has."""
        return len(self._taken)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        """A connection of the pool. Where none is to be had although not all are in use, the server is not there: OperationalError.

        One on which the server takes no writes is closed: the next one may lead to another server, or begin with other settings.
        """
        connection = await self._take()
        try:
            yield connection
        except psycopg.errors.ReadOnlySqlTransaction:
            await connection.close()
            raise
        finally:
            await self._give_back(connection)

    async def _take(self) -> Connection:
        asked = perf_counter()
        try:
            while is_gone(connection := await self._pool.getconn()):
                await self._pool.putconn(connection)  # Which makes another one instead.
        except PoolTimeout as error:
            self._metrics.timed_out()
            if self.in_use < self._pool.max_size:
                raise psycopg.OperationalError("no connection could be made") from error
            raise
        self._taken[connection] = (asked, perf_counter())
        self._metrics.taken()
        return connection

    async def _give_back(self, connection: Connection) -> None:
        asked, taken = self._taken.pop(connection)
        self._metrics.given_back(waited_seconds=taken - asked, had_seconds=perf_counter() - taken)
        await self._pool.putconn(connection)

    @asynccontextmanager
    async def transaction(self, tenant_id: str) -> AsyncIterator[Connection]:
        """One transaction that sees and writes the rows of this tenant and nothing else.

        Begun and scoped in a single round trip; committed at the end of the block, rolled back when it raises. Put nothing slow inside: no RPC,
        no S3. Raises ValueError for a scope that is neither a well-formed tenant id nor EVERY_TENANT.
        """
        begin = f"begin; {_scope(tenant_id)}".encode()
        async with self._connection() as connection:
            try:
                await connection.execute(begin)
                yield connection
            except BaseException:
                await _roll_back(connection)
                raise
            await connection.commit()

    @asynccontextmanager
    async def transaction_of(
        self, tenant_id: str, statement: str, parameters: Mapping[str, Any]
    ) -> AsyncIterator[tuple[Connection, list[DictRow]]]:
        """Like `transaction`, and its first statement goes along with its beginning, in one round trip: its rows come with the connection.

        The parameters are written into the text, so the statement is planned anew each time: for the call of a function, whose own are not.
        """
        begin = f"begin; {_scope(tenant_id)};"
        async with self._connection() as connection:
            cursor = AsyncClientCursor(connection, row_factory=dict_row)
            try:
                await cursor.execute(f"{begin} {statement}", parameters)
                while cursor.nextset():
                    pass
                yield connection, await cursor.fetchall()
            except BaseException:
                await _roll_back(connection)
                raise
            await connection.commit()

    @asynccontextmanager
    async def pipelined(self, tenant_id: str, *, at_most_seconds: float = 60.0) -> AsyncIterator[Connection]:
        """As `transaction`, with a round trip only where rows are fetched, and one at the end.

        What is executed and not fetched goes with the next fetch, and what went wrong with it is raised there, or at the end of the block.
        A cursor may also be fetched from behind the block. A block that takes longer than `at_most_seconds` is ended by the server, with its
        connection: whoever waits for its locks does not wait for a client that has stopped. Raises ValueError as `transaction` does.
        """
        _check_scope(tenant_id)
        async with self._connection() as connection:
            try:
                async with connection.pipeline():
                    # Each in the words of one statement, which is all that a pipeline takes.
                    await connection.execute("begin")
                    if connection.info.server_version >= _KNOWS_TRANSACTION_TIMEOUT:
                        bounds = {"tenant_id": tenant_id, "end": f"{at_most_seconds * 1000:.0f}ms"}
                        await connection.execute(_SET_SCOPE_AND_END, bounds)
                    else:
                        await connection.execute(_SET_SCOPE, {"tenant_id": tenant_id})
                    try:
                        yield connection
                    except asyncio.CancelledError:
                        await connection.close()  # Leaving the pipeline would wait for whatever was sent.
                        raise
                    await connection.execute("commit")  # `commit()` would look at a state that is not known yet.
            except Exception:
                if connection.info.pipeline_status is not PipelineStatus.OFF:
                    await connection.close()
                else:
                    await _roll_back(connection)
                raise
            except BaseException:
                await (
                    connection.close()
                )  # Cut off wherever it was, also while it left the pipeline; the pool makes another one.
                raise

    async def call(self, tenant_id: str, statement: str, parameters: Mapping[str, Any]) -> list[DictRow]:
        """Runs one statement as a transaction of its own, in a single round trip, and gives its rows.

        The statement is to be a call of a function that takes its tenant from the very expression SCOPE, with `tenant_id` among the parameters:
        so the scope is set before anything in the function runs, and is gone with the statement. Raises ValueError for a statement without it,
        and for what is not a well-formed tenant id.
        """
        if SCOPE not in statement:
            raise ValueError(f"a statement that is called takes its tenant from {SCOPE}")
        _check_scope(tenant_id)
        connection = await self._take()  # No context manager: this is what services do most.
        values = {**parameters, "tenant_id": tenant_id}
        try:
            cursor = await connection.execute(statement, values, binary=True)
            return await cursor.fetchall()
        except psycopg.errors.FeatureNotSupported:
            # A migration has changed a row that it gives since it was prepared here. It was not run, and would never be on this connection.
            cursor = await connection.execute(statement, values, binary=True, prepare=False)
            rows = await cursor.fetchall()
            await connection.close()
            return rows
        except psycopg.errors.ReadOnlySqlTransaction:
            await connection.close()  # As `_connection` does.
            raise
        finally:
            await self._give_back(connection)

    async def notify(self, channel: str, payloads: Sequence[str]) -> None:
        """Wakes whoever listens to the channel, once for each payload, in a transaction that writes nothing."""
        async with self._connection() as connection:
            await connection.execute(_NOTIFY, {"channel": channel, "payloads": list(payloads)})

    async def check(self) -> None:
        """Raises when no connection answers."""
        async with self._connection() as connection:
            await connection.execute("select 1")


async def _configure(connection: Connection) -> None:
    await connection.set_autocommit(True)  # Transactions are begun by `Database.transaction` alone.


@asynccontextmanager
async def open_database(
    dsn: str,
    *,
    name: str,
    max_connections: int,
    wait_seconds: float = 3.0,
    statement_timeout_seconds: float = 30.0,
    pooled: bool = False,
    meter: Meter = _NO_METER,
) -> AsyncIterator[Database]:
    """Opens the pool: at most `max_connections`, each statement cut off after `statement_timeout_seconds`.

    A caller who finds every connection in use waits `wait_seconds` and is then refused with psycopg_pool.PoolTimeout. Opening does not wait for
    the server: a process starts while its database is down, and answers UNAVAILABLE until it is up. `pooled` is for a DSN that leads through a
    pooler in transaction mode: nothing is left on a connection for the next transaction, and the timeouts are those of the role.
    """
    arguments: dict[str, Any] = {
        "row_factory": dict_row,
        "application_name": name,
        "connect_timeout": 5,
    }
    if pooled:
        arguments["prepare_threshold"] = None
    else:
        milliseconds = int(statement_timeout_seconds * 1000)
        arguments["options"] = f"-c statement_timeout={milliseconds} -c idle_in_transaction_session_timeout=60000"
    pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
        dsn,
        connection_class=ImpatientConnection[DictRow],
        kwargs=arguments,
        min_size=min(2, max_connections),
        max_size=max_connections,
        timeout=wait_seconds,
        configure=_configure,
        name=name,
        open=False,
        reconnect_timeout=5.0,
    )
    metrics = PoolMetrics(meter, name)
    metrics.opened(max_connections)
    await pool.open(wait=False)
    try:
        yield Database(pool, metrics)
    finally:
        await pool.close(timeout=5.0)


async def rescope(connection: Connection, tenant_id: str) -> None:
    """Turns the rest of the transaction to another tenant: a queue picks work in the scope EVERY_TENANT and then does it for its tenant."""
    await connection.execute(_scope(tenant_id).encode())
