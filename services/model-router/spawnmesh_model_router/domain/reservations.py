"""Reserve the largest cost of a call before it begins: concurrent calls do not overspend."""

from collections.abc import Iterable
from dataclasses import dataclass

from spawnmesh_model_router.domain.answer import UsageBounds
from spawnmesh_model_router.domain.policy import Prices, cost_micros

RETRY_SECONDS = 5.0
"""The time after which a call that was refused because of calls in progress may be repeated.

A model needs some seconds to some minutes for a call.
"""

_MARGIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Reservation:
    """The largest cost of a call, which counts as spent until its cost is charged.

    It expires after `seconds`, for the case that this process crashes. The call is admitted if what
    is spent and reserved before it is below `spend_limit`.
    """

    reservation_id: str
    spend_micros: int
    spend_limit: int
    seconds: float


def largest_cost(candidates: Iterable[tuple[Prices, UsageBounds]]) -> int:
    """Return the cost of the most expensive candidate, if it reads and writes all that it may.

    The cost of attempts that fail before it is not part of it.
    """
    return max((_largest(prices, bounds) for prices, bounds in candidates), default=0)


def largest_tokens(candidates: Iterable[tuple[Prices, UsageBounds]]) -> int:
    """Return the most tokens that one of the candidates may read and write together."""
    return max((bounds.input + bounds.output for _, bounds in candidates), default=0)


def _largest(prices: Prices, bounds: UsageBounds) -> int:
    is_cache_dearer = prices.cache_write > prices.input
    return cost_micros(prices, bounds.input, bounds.output, 0, bounds.input if is_cache_dearer else 0)


def seconds_until_expiry(remaining_seconds: float) -> float:
    """Return the life of a reservation of a call whose deadline is in so many seconds."""
    return max(remaining_seconds, 0.0) + _MARGIN_SECONDS
