"""Failed calls of past hours, as if the tenant's calls of models had failed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg

from tests.support.console.visitors import ConsoleTenant


@dataclass(frozen=True)
class FailedRow:
    """The failed calls of a model for one reason in one hour."""

    hours_ago: int
    model: str
    reason: str
    failure_count: int = 1
    failover_count: int = 0
    end_count: int = 0


async def put_failed_calls(tenant: ConsoleTenant, rows: Sequence[FailedRow]) -> None:
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    values = [
        (
            tenant.tenant_id,
            hour - timedelta(hours=one.hours_ago),
            one.model,
            one.reason,
            one.failure_count,
            one.failover_count,
            one.end_count,
        )
        for one in rows
    ]
    dsn = tenant.console.stack.superuser_dsn
    async with await psycopg.AsyncConnection.connect(dsn) as connection, connection.cursor() as cursor:
        await cursor.executemany(
            "insert into model_router.failure_hours values (%s, %s, %s, %s, %s, %s, %s)", values
        )
