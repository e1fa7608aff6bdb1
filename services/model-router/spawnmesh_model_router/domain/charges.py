"""The usage of answers with its cost, as the budgets are charged for it."""

from dataclasses import dataclass, field

from spawnmesh_model_router.domain.answer import Usage
from spawnmesh_model_router.domain.policy import Prices, cost_micros


@dataclass(frozen=True, slots=True)
class ChargedUsage:
    """Tokens of one or several answers, and their cost in millionths of the currency.

    The cost of a sum is the sum of the costs: each answer has the prices of its own model.
    """

    usage: Usage = field(default_factory=Usage)
    cost_micros: int = 0

    @property
    def token_count(self) -> int:
        """Return the tokens that count in budgets: input, with cache reads, and output."""
        return self.usage.input + self.usage.output

    def __add__(self, other: "ChargedUsage") -> "ChargedUsage":
        return ChargedUsage(self.usage + other.usage, self.cost_micros + other.cost_micros)


def charge_for(prices: Prices, usage: Usage) -> ChargedUsage:
    """Return the usage of one answer with its cost, rounded up to a millionth."""
    cost = cost_micros(prices, usage.input, usage.output, usage.cache_read, usage.cache_write)
    return ChargedUsage(usage, cost)
