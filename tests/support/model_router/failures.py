"""The failed calls of tenants, as ListFailures says them and as the database has them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from spawnmesh.model_router.v1 import failures_pb2, generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_postgres.database import scope_statement

from tests.support.model_router.fixtures import Router, World
from tests.support.waiting import eventually

BY_HOUR, BY_MODEL, BY_REASON = (
    failures_pb2.FAILURE_DIMENSION_HOUR,
    failures_pb2.FAILURE_DIMENSION_MODEL,
    failures_pb2.FAILURE_DIMENSION_REASON,
)
Row = tuple[str, str, int, int, int]
"""A model without its provider, a reason, and the numbers of failures, failovers and ends."""


def this_hour() -> datetime:
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


async def list_failures(router: Router, **fields: Any) -> pb.ListFailuresResponse:
    """Return the first page, which has all rows of a test. Raises MeshError."""
    fields.setdefault("page_size", 1000)
    response: pb.ListFailuresResponse = await router.call("ListFailures", pb.ListFailuresRequest(**fields))
    return response


async def failed(router: Router, failure_count: int, **fields: Any) -> list[Row]:
    """Return the rows once they have so many failures, which are stored about a second later."""

    async def complete() -> list[Row]:
        rows = (await list_failures(router, **fields)).rows
        if sum(row.failure_count for row in rows) < failure_count:
            return []
        return [
            (
                row.model.partition("/")[2],
                generation_pb2.FailoverReason.Name(row.reason).removeprefix("FAILOVER_REASON_"),
                row.failure_count,
                row.failover_count,
                row.end_count,
            )
            for row in rows
        ]

    return await eventually(complete)


async def put_failures(
    world: World, tenant_id: str, hours_ago: int, *names: tuple[str, str], failure_count: int = 1
) -> None:
    """Store a row of a past hour for each of these models and reasons. Each failure ended a call."""
    hour = this_hour() - timedelta(hours=hours_ago)
    rows = [(tenant_id, hour, model, reason, failure_count, failure_count) for model, reason in names]
    async with await psycopg.AsyncConnection.connect(world.dsn.app) as connection:
        await connection.execute(scope_statement(tenant_id).encode())
        async with connection.cursor() as cursor:
            await cursor.executemany("insert into failure_hours values (%s, %s, %s, %s, %s, 0, %s)", rows)


async def stored_failures(world: World, tenant_id: str) -> Sequence[tuple[datetime, str, str, int]]:
    """Return the hour, the model, the reason and the number of failures of each row."""
    async with await psycopg.AsyncConnection.connect(world.dsn.app) as connection:
        await connection.execute(scope_statement(tenant_id).encode())
        query = "select hour_time, model, reason, failure_count from failure_hours order by 1, 2, 3"
        return await (await connection.execute(query)).fetchall()
