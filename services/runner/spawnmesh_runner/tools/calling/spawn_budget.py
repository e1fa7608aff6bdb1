"""The budget of a child, as a model gives it."""

from decimal import Decimal
from typing import Self

from pydantic import Field, model_validator
from spawnmesh.session.v1 import budget_pb2

from spawnmesh_runner.tools.calling.tool import Arguments

_MICROS = 1_000_000
_MOST_TOKENS, _MOST_CALLS, _MOST_COST = 10**15, 10**12, 10**9
_MOST_MINUTES = 365 * 24 * 60  # The contract's bound.


class SpawnBudget(Arguments):
    max_tokens: int | None = Field(default=None, gt=0, le=_MOST_TOKENS)
    max_cost: float | None = Field(
        default=None, gt=0, le=_MOST_COST, description="In the currency of the prices."
    )
    max_model_calls: int | None = Field(default=None, gt=0, le=_MOST_CALLS)
    max_minutes: float | None = Field(
        default=None, gt=0, le=_MOST_MINUTES, description="Of work, without waits."
    )

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if all(limit is None for limit in self.model_dump().values()):
            raise ValueError("give at least one limit, or leave the budget out")
        return self


def render_budget(budget: SpawnBudget | None) -> budget_pb2.Budget | None:
    """Return the budget as the contract's message; None without one.

    A limit that is too small for the contract's units is the smallest one: 0 would be no limit.
    """
    if budget is None:
        return None
    rendered = budget_pb2.Budget(
        max_token_count=budget.max_tokens or 0, max_model_call_count=budget.max_model_calls or 0
    )
    if budget.max_cost is not None:  # As the model wrote it: 0.29 is 290,000 micros.
        rendered.max_cost_micros = max(1, round(Decimal(str(budget.max_cost)) * _MICROS))
    if budget.max_minutes is not None:
        rendered.max_run_time.FromMilliseconds(max(1000, round(budget.max_minutes * 60_000)))
    return rendered
