"""Several statements in one round trip."""

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import AsyncCursor
from psycopg.pq import PipelineStatus

from spawnmesh_postgres.connection import BoundedCancelConnection
from spawnmesh_postgres.rows import Row


async def execute_batch(
    connection: BoundedCancelConnection[Row], statements: Sequence[str], parameters: Mapping[str, Any]
) -> list[list[Row]]:
    """Run the statements in order, in one round trip, and return the rows of each.

    The statements share the parameters. In READ COMMITTED each sees what was committed before it
    began, also while an earlier one waited for a lock. If one fails, the later ones do not run. A
    connection that cannot be used again is closed.
    """
    try:
        async with connection.pipeline():
            cursors = [await _send(connection, statement, parameters) for statement in statements]
    except BaseException as error:
        is_interrupted = not isinstance(error, Exception)
        if is_interrupted or connection.info.pipeline_status is not PipelineStatus.OFF:
            await connection.close()
        raise
    return [[] if cursor.description is None else await cursor.fetchall() for cursor in cursors]


async def _send(
    connection: BoundedCancelConnection[Row], statement: str, parameters: Mapping[str, Any]
) -> AsyncCursor[Row]:
    if "%(" in statement:
        return await connection.execute(statement, parameters)
    # Such as the scope of a tenant, of which a connection would keep one prepared for each.
    return await connection.execute(statement.encode(), prepare=False)
