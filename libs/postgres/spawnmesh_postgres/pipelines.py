"""Statements that are sent in one pipeline."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import psycopg
from psycopg import AsyncPipeline
from psycopg.pq import PipelineStatus

from spawnmesh_postgres.connection import BoundedCancelConnection
from spawnmesh_postgres.rows import Row

Statement = tuple[str, Mapping[str, Any]]
"""A statement and its parameters."""


@asynccontextmanager
async def open_pipeline(connection: BoundedCancelConnection[Row]) -> AsyncIterator[AsyncPipeline]:
    """Send the statements of the block in one pipeline.

    If one fails, the later ones do not run, and the block raises its error.
    """
    try:
        async with connection.pipeline() as pipeline:
            yield pipeline
    except psycopg.errors.PipelineAborted as aborted:
        # The driver may raise the error of a later statement in place of the first.
        first = aborted.__context__
        raise (first if isinstance(first, psycopg.Error) else aborted) from None


def queue(pipeline: AsyncPipeline, statement: str) -> None:
    """Send a statement without rows with the next one, or at the end of the pipeline.

    To execute it would cost more than the statement itself: the driver waits until the socket
    takes it. If it fails, the pipeline raises its error.
    """
    pipeline.command_queue.append(partial(pipeline.pgconn.send_query_params, statement.encode(), None))
    pipeline.result_queue.append(None)


async def run_transaction(
    connection: BoundedCancelConnection[Row],
    scope: str,
    statements: Sequence[Statement],
    *,
    prepare: bool | None = None,
) -> list[list[Row]]:
    """Run the statements as a transaction in this scope, in one round trip, and return the rows of
    each.

    The commit is sent with them. A connection that cannot be used again is closed; another one may
    be left in a failed transaction.
    """
    try:
        async with open_pipeline(connection) as pipeline:
            try:
                # A pipeline accepts one statement for each message.
                queue(pipeline, "begin")
                queue(pipeline, scope)
                cursors = [
                    await connection.execute(statement, parameters, binary=True, prepare=prepare)
                    for statement, parameters in statements
                ]
            except asyncio.CancelledError:
                # Leaving the pipeline would wait for all sent statements.
                await connection.close()
                raise
            queue(pipeline, "commit")
    except BaseException as error:
        is_interrupted = not isinstance(error, Exception)
        if is_interrupted or connection.info.pipeline_status is not PipelineStatus.OFF:
            await connection.close()
        raise
    return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]
