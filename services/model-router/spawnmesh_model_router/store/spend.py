"""The spending of tenants by day, agent and model in the database."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements
from spawnmesh_postgres.tenant_purges import join_writers

from spawnmesh_model_router.domain.answer import Usage
from spawnmesh_model_router.domain.charges import ChargedUsage
from spawnmesh_model_router.domain.spend import Spend, SpendKey, SpendSpan, SpendSums

_SQL = load_statements(__name__)


@dataclass(frozen=True, slots=True)
class SpendGrouping:
    """The dimensions by which rows are told apart; they are sums over the others."""

    by_day: bool
    by_agent: bool
    by_model: bool


@dataclass(frozen=True, slots=True)
class DaySpending:
    """The limit of a tenant's spending of the current day, 0 if there is none, and what counts
    against it, in millionths of the currency.
    """

    limit_micros: int
    spent_micros: int
    reserved_micros: int
    renew_time: datetime


async def list_agents(connection: Connection, tenant_id: str, days: Sequence[date]) -> dict[date, set[str]]:
    """Return the agents that have rows of their own on these days."""
    cursor = await connection.execute(_SQL["list_agents"], {"tenant_id": tenant_id, "days": days})
    found: dict[date, set[str]] = {}
    for row in await cursor.fetchall():
        found.setdefault(row["day"], set()).add(row["agent_id"])
    return found


async def add_spend(connection: Connection, tenant_id: str, spend: SpendSums, first_kept: date) -> None:
    """Add to the tenant's rows, and delete those of the days before the first one that is kept.

    Store nothing for a purged tenant.
    """
    keys, spends = list(spend.sums), list(spend.sums.values())
    parameters = {
        "tenant_id": tenant_id,
        "days": [key.day for key in keys],
        "agent_ids": [key.agent_id for key in keys],
        "models": [key.model for key in keys],
        "call_counts": [one.call_count for one in spends],
        "input": [one.charged.usage.input for one in spends],
        "output": [one.charged.usage.output for one in spends],
        "cache_read": [one.charged.usage.cache_read for one in spends],
        "cache_write": [one.charged.usage.cache_write for one in spends],
        "cost_micros": [one.charged.cost_micros for one in spends],
    }
    await join_writers(connection, tenant_id)
    await connection.execute(_SQL["add_spend"], parameters)
    past = {"tenant_id": tenant_id, "first_kept": first_kept}
    await connection.execute(_SQL["delete_past_days"], past)


async def list_spend(
    connection: Connection,
    tenant_id: str,
    span: SpendSpan,
    grouping: SpendGrouping,
    after: SpendKey | None,
    limit: int,
) -> list[tuple[SpendKey, Spend]]:
    """Return the rows of the span after this one, by day, agent and model.

    A dimension that is not wanted is that of the first day, or empty.
    """
    parameters = {
        "tenant_id": tenant_id,
        "first": span.first,
        "last": span.last,
        "by_day": grouping.by_day,
        "by_agent": grouping.by_agent,
        "by_model": grouping.by_model,
        "is_first": after is None,
        "after_day": after.day if after is not None and grouping.by_day else span.first,
        "after_agent": after.agent_id if after is not None else "",
        "after_model": after.model if after is not None else "",
        "limit": limit,
    }
    rows = await (await connection.execute(_SQL["list_spend"], parameters)).fetchall()
    return [
        (
            SpendKey(row["day"], row["agent_id"], row["model"]),
            Spend(
                row["call_count"],
                ChargedUsage(
                    Usage(row["input"], row["output"], row["cache_read"], row["cache_write"]),
                    row["cost_micros"],
                ),
            ),
        )
        for row in rows
    ]


async def get_day_spending(connection: Connection, tenant_id: str) -> DaySpending | None:
    """Return the tenant's spending of the current day; None for a tenant that is not prepared."""
    row = await (await connection.execute(_SQL["get_day_spending"], {"tenant_id": tenant_id})).fetchone()
    return None if row is None else DaySpending(**row)
