"""Spending of past days, as if the tenant's agents had called models, and budgets of a day."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import psycopg
from spawnmesh.session.v1.tenant_pb2 import TenantSettings

from tests.support.console.visitors import ConsoleTenant, operator_of_the_mesh
from tests.support.waiting import eventually


@dataclass(frozen=True)
class SpentRow:
    """The calls of an agent at a model on one day."""

    days_ago: int
    agent_id: str
    model: str
    cost_micros: int
    call_count: int = 1


def today() -> date:
    return datetime.now(UTC).date()


async def put_spending(tenant: ConsoleTenant, rows: Sequence[SpentRow]) -> None:
    """Store the rows. Each call has read 1,000 tokens, 400 of them from a cache, and written 100."""
    values = [
        (
            tenant.tenant_id,
            today() - timedelta(days=one.days_ago),
            one.agent_id,
            one.model,
            one.call_count,
            1000 * one.call_count,
            100 * one.call_count,
            400 * one.call_count,
            one.cost_micros,
        )
        for one in rows
    ]
    dsn = tenant.console.stack.superuser_dsn
    async with await psycopg.AsyncConnection.connect(dsn) as connection, connection.cursor() as cursor:
        await cursor.executemany(
            "insert into model_router.spend_days values (%s, %s, %s, %s, %s, %s, %s, %s, 0, %s)", values
        )


async def put_budget(
    tenant: ConsoleTenant, limit_micros: int, spent_micros: int = 0, reserved_micros: int = 0
) -> None:
    """Limit the tenant's spending of a day, of which so much is spent and reserved today."""
    settings = TenantSettings()
    settings.routing.max_spend_micros_per_day = limit_micros
    async with operator_of_the_mesh(tenant.console) as operator:
        path = "settings.routing.max_spend_micros_per_day"
        await operator.tenants.update(tenant.tenant_id, [path], settings=settings)
    async with await psycopg.AsyncConnection.connect(tenant.console.stack.superuser_dsn) as connection:
        await connection.execute(
            """
            insert into model_router.budget_periods
                (tenant_id, period, begin_time, spend_micros, reserved_micros)
            values (%s, 'DAY', date_trunc('day', now(), 'UTC'), %s, %s)
            """,
            (tenant.tenant_id, spent_micros, reserved_micros),
        )

    async def is_known() -> bool:
        budget = (await tenant.mesh.models.spend()).budget
        return budget is not None and budget.limit_micros == limit_micros

    await eventually(is_known)
