"""The spending of a tenant, as the model router lists it."""

import asyncio
from datetime import UTC, datetime

from spawnmesh_client.client import Mesh
from spawnmesh_client.spending import SpendDimension, Spending, SpendRow

from spawnmesh_console.domain.spending import DayBudget, ListedSpend, ListedSpending, SpentAmount


async def listed_spending(mesh: Mesh, begin: datetime) -> ListedSpending:
    """Return the spending from the midnight `begin` on, by day, by agent and by model."""

    async def listed(dimension: SpendDimension) -> Spending:
        return await mesh.models.spend(start_time=begin, group_by=[dimension])

    days, agents, models = await asyncio.gather(
        *map(listed, (SpendDimension.DAY, SpendDimension.AGENT, SpendDimension.MODEL))
    )
    return ListedSpending(
        [_row(one) for one in days.rows],
        [_row(one) for one in agents.rows],
        [_row(one) for one in models.rows],
        _budget(days),
        days.currency,
    )


async def listed_today(mesh: Mesh, begin: datetime) -> ListedSpending:
    """Return the spending of the day that began at the midnight `begin`, and its budget."""
    today = await mesh.models.spend(start_time=begin, group_by=[SpendDimension.DAY])
    return ListedSpending([_row(one) for one in today.rows], budget=_budget(today), currency=today.currency)


def _row(one: SpendRow) -> ListedSpend:
    spent = SpentAmount(
        one.call_count,
        one.input_token_count,
        one.cache_read_token_count,
        one.output_token_count,
        one.cost_micros,
    )
    day = one.day_time.astimezone(UTC).date() if one.day_time is not None else None
    return ListedSpend(spent, day, one.agent_id, one.model)


def _budget(spending: Spending) -> DayBudget | None:
    if (budget := spending.budget) is None:
        return None
    return DayBudget(budget.limit_micros, budget.spent_micros, budget.reserved_micros, budget.renew_time)
