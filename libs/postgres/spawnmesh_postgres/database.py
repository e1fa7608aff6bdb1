"""Transactions for one tenant, on the connections to the database of a service."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import psycopg
from opentelemetry.metrics import Meter, NoOpMeter
from psycopg import AsyncCursor
from psycopg.pq import PipelineStatus
from psycopg.rows import dict_row
from spawnmesh_core.dependency_watch import POSTGRESQL, DependencyWatch
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import TENANT_ID
from spawnmesh_core.reasons import Reason

from spawnmesh_postgres.connection import BoundedCancelConnection
from spawnmesh_postgres.pipelines import Statement, open_pipeline, queue, run_transaction
from spawnmesh_postgres.pool_metrics import PoolMetrics
from spawnmesh_postgres.pooled_connections import PooledConnections
from spawnmesh_postgres.probed_pool import ProbedPool
from spawnmesh_postgres.rows import Row
from spawnmesh_postgres.statement_batches import execute_batch

Connection = BoundedCancelConnection[Row]

ALL_TENANTS = "*"
"""The scope of queues that serve all tenants. Only the policies of such tables admit it."""

# Earlier versions do not time out a pipeline whose client is silent.
_HAS_TRANSACTION_TIMEOUT = 170_000

# A server that answers needs milliseconds; otherwise the connection is closed.
_ROLLBACK_SECONDS = 1.0

_NO_METER = NoOpMeter("spawnmesh")

_NOTIFY = """
select pg_notify(%(channel)s || (select suffix from _spawnmesh_channels), payload)
from unnest(%(payloads)s::text[]) as payload
"""


def scope_statement(tenant_id: str) -> str:
    """Return the statement that scopes a transaction to the tenant.

    Raises ValueError for a malformed tenant id.
    """
    # A valid scope needs no escaping, and composing the statement would be most of the cost of a
    # begin.
    if tenant_id != ALL_TENANTS and TENANT_ID.fullmatch(tenant_id) is None:
        raise ValueError("a transaction needs a well-formed tenant id")
    return f"set local spawnmesh.tenant = '{tenant_id}'"


def writers_key(tenant_id: str) -> str:
    """Return the SQL expression of the advisory lock that a purge of the tenant takes alone, and
    each transaction that adds rows shares. `tenant_id` is an SQL expression.
    """
    return f"hashtextextended(current_schema() || ' rows of ' || {tenant_id}, 0)"


_WRITERS_OF_SCOPE = writers_key("current_setting('spawnmesh.tenant')")
_JOIN_WRITERS = f"select pg_advisory_xact_lock_shared({_WRITERS_OF_SCOPE})"


class TenantPurged(MeshError):
    """The tenant is being purged, or was. Nothing is stored for it until it is created anew."""

    def __init__(self) -> None:
        super().__init__(Reason.UNKNOWN_TENANT, "this tenant was deleted; ask an operator to create it")


async def _roll_back(connection: Connection) -> None:
    """Roll back the transaction or close the connection, without hiding the original error."""
    if connection.closed:
        return
    try:
        async with asyncio.timeout(_ROLLBACK_SECONDS):
            await connection.rollback()
    except (TimeoutError, psycopg.Error):
        await connection.close()


async def _begin(connection: Connection, *statements: str) -> AsyncCursor[Row] | None:
    """Begin a transaction with these statements, in one round trip.

    Return the cursor of the last one if there are more than the scope. Each statement is a message:
    the coordinator of a Citus cluster repeats the message of a `set local` on other nodes.
    """
    connection.in_block = True
    cursor = None
    try:
        async with open_pipeline(connection) as pipeline:
            queue(pipeline, "begin")
            queue(pipeline, statements[0])
            for statement in statements[1:]:
                cursor = await connection.execute(statement.encode(), prepare=False)
    except BaseException:
        if connection.info.pipeline_status is not PipelineStatus.OFF:
            await connection.close()
        raise
    return cursor


async def _commit(connection: Connection) -> None:
    connection.in_block = False
    await connection.commit()


async def commit_with(connection: Connection, statement: str, parameters: Mapping[str, Any]) -> None:
    """Run the last statement of the transaction and commit, in one round trip.

    The locks of the statement are held for a moment only. The block of the transaction may end
    without doing anything more.
    """
    connection.in_block = False
    await execute_batch(connection, (statement, "commit"), parameters)


class Database:
    """Transactions with the service's own role, to which row-level security applies."""

    def __init__(self, connections: PooledConnections) -> None:
        self.connections = connections

    @asynccontextmanager
    async def transaction(self, tenant_id: str) -> AsyncIterator[Connection]:
        """Open a transaction that sees and writes only the rows of this tenant.

        It begins and is scoped in one round trip. It is committed at the end of the block and
        rolled back if the block raises. Do nothing slow in the block: no RPC, no S3. Raises
        ValueError if the scope is neither a well-formed tenant id nor ALL_TENANTS.
        """
        scope = scope_statement(tenant_id)
        async with self.connections.use() as connection:
            try:
                await _begin(connection, scope)
                yield connection
            except BaseException:
                await _roll_back(connection)
                raise
            await _commit(connection)

    @asynccontextmanager
    async def adding(self, tenant_id: str) -> AsyncIterator[Connection]:
        """Open a transaction as `transaction` does, for adding rows of the tenant.

        No purge of the tenant begins until it ends. Raises TenantPurged if one has begun. It begins
        in one round trip as well; the service has the table of `tenant_purges`.
        """
        scope = scope_statement(tenant_id)
        # The id is well-formed. As a constant, it names the one shard to read.
        find_purge = f"select from purged_tenants where tenant_id = '{tenant_id}'"
        async with self.connections.use() as connection:
            try:
                # Each statement sees what was committed before.
                purge = await _begin(connection, scope, _JOIN_WRITERS, find_purge)
                if purge is not None and purge.rowcount:
                    raise TenantPurged
                yield connection
            except BaseException:
                await _roll_back(connection)
                raise
            await _commit(connection)

    @asynccontextmanager
    async def transaction_with_statements(
        self, tenant_id: str, statements: Sequence[str], parameters: Mapping[str, Any]
    ) -> AsyncIterator[tuple[Connection, list[list[Row]]]]:
        """Open a transaction as `transaction` does, and run its first statements in the
        same round trip, as `execute_batch` does.

        Yields the connection and the rows of each statement.
        """
        begin = ["begin", scope_statement(tenant_id)]
        async with self.connections.use() as connection:
            connection.in_block = True
            try:
                rows = await execute_batch(connection, [*begin, *statements], parameters)
                yield connection, rows[len(begin) :]
            except BaseException:
                await _roll_back(connection)
                raise
            await _commit(connection)

    @asynccontextmanager
    async def pipelined(self, tenant_id: str, *, timeout_seconds: float = 60.0) -> AsyncIterator[Connection]:
        """Open a transaction as `transaction` does, in pipeline mode.

        A round trip happens only when rows are fetched, and at the end of the block. Statements
        without a fetch are sent with the next fetch; their errors are raised there or at the end of
        the block. A cursor may be fetched after the block. The server ends a block that takes
        longer than `timeout_seconds`, and its connection: the locks of a stopped client must not
        block others. Raises ValueError as `transaction` does.
        """
        scope = scope_statement(tenant_id)
        async with self.connections.use() as connection:
            try:
                async with open_pipeline(connection) as pipeline:
                    # A pipeline accepts one statement for each message.
                    queue(pipeline, "begin")
                    queue(pipeline, scope)
                    if connection.info.server_version >= _HAS_TRANSACTION_TIMEOUT:
                        queue(pipeline, f"set local transaction_timeout = {timeout_seconds * 1000:.0f}")
                    try:
                        yield connection
                    except asyncio.CancelledError:
                        # Leaving the pipeline would wait for all sent statements.
                        await connection.close()
                        raise
                    # `commit()` needs the transaction status, which is not known yet.
                    queue(pipeline, "commit")
            except Exception:
                if connection.info.pipeline_status is not PipelineStatus.OFF:
                    await connection.close()
                else:
                    await _roll_back(connection)
                raise
            except BaseException:
                # Interrupted at an unknown point, also while leaving the pipeline; the pool
                # replaces it.
                await connection.close()
                raise

    async def transact(self, tenant_id: str, *statements: Statement) -> list[list[Row]]:
        """Run the statements as a transaction that sees and writes only the rows of this tenant, in
        one round trip, and return the rows of each.

        Each sees what was committed before it began, also while an earlier one waited for a lock.
        The commit is sent with them: a client that stops holds no lock. Raises ValueError as
        `transaction` does.
        """
        scope = scope_statement(tenant_id)
        # No context manager: this is the most frequent operation.
        connection = await self.connections.take()
        try:
            return await run_transaction(connection, scope, statements)
        except psycopg.errors.FeatureNotSupported:
            # A migration changed the result type of a prepared statement. It did not run and cannot
            # run again.
            await _roll_back(connection)
            rows = await run_transaction(connection, scope, statements, prepare=False)
            await self.connections.renew(connection)
            return rows
        except psycopg.errors.ReadOnlySqlTransaction:
            await connection.close()  # As in `PooledConnections.use`.
            raise
        except BaseException:
            await _roll_back(connection)
            raise
        finally:
            await self.connections.give_back(connection)

    async def call(self, tenant_id: str, statement: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Run one statement as `transact` does, with `tenant_id` among its parameters."""
        (rows,) = await self.transact(tenant_id, (statement, {**parameters, "tenant_id": tenant_id}))
        return rows

    async def notify(self, channel: str, payloads: Sequence[str]) -> None:
        """Notify the listeners of the channel once for each payload, in a transaction
        that writes nothing.
        """
        async with self.connections.use() as connection:
            await connection.execute(_NOTIFY, {"channel": channel, "payloads": list(payloads)})


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
    dependencies: DependencyWatch | None = None,
) -> AsyncIterator[Database]:
    """Open the pool, with a timeout for each statement.

    If all `max_connections` are in use, a caller waits `wait_seconds` and then gets
    psycopg_pool.PoolTimeout. Opening does not wait for the server: a process starts while its
    database is down, and answers UNAVAILABLE, within two seconds, until it is up. `pooled` is for
    a DSN through a pooler in transaction mode: the pool keeps no state on connections, and the role
    sets the timeouts. The server is one of the `dependencies` during the block.
    """
    arguments: dict[str, Any] = {"row_factory": dict_row, "application_name": name}
    if pooled:
        arguments["prepare_threshold"] = None
    else:
        milliseconds = int(statement_timeout_seconds * 1000)
        arguments["options"] = (
            f"-c statement_timeout={milliseconds} -c idle_in_transaction_session_timeout=60000"
            # A statement whose client has closed the connection ends.
            " -c client_connection_check_interval=1000"
        )
    pool = ProbedPool[Row](
        dsn,
        kwargs=arguments,
        min_size=min(2, max_connections),
        max_size=max_connections,
        timeout=wait_seconds,
        name=name,
    )
    metrics = PoolMetrics(meter, name)
    metrics.opened(max_connections)
    await pool.open(wait=False)
    connections = PooledConnections(pool, metrics)
    watching = nullcontext() if dependencies is None else dependencies.watching(POSTGRESQL, connections.check)
    try:
        with watching:
            yield Database(connections)
    finally:
        await pool.close(timeout=5.0)


async def switch_tenant(connection: Connection, tenant_id: str) -> None:
    """Change the scope of the transaction to another tenant.

    A queue selects work in the scope ALL_TENANTS and then does it for the tenant.
    """
    await connection.execute(scope_statement(tenant_id).encode())
