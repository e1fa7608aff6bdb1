"""Thinking: levels of the contract, and a provider's own words or token budgets."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MIN_BUDGET_TOKENS: Final = 1024
"""The smallest budget that every provider with budgets accepts, and the least left for the answer.
"""


class ThinkingLevel(StrEnum):
    """Levels, lowest first. The names are those of the contract."""

    OFF = "off"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class ThinkingSetting:
    """A level, and the value that the provider gets: its own word, or a budget in tokens (0 is
    none).
    """

    level: ThinkingLevel
    value: int | str


def choose(
    wanted: ThinkingLevel, available: Mapping[ThinkingLevel, int | str], max_output: int
) -> ThinkingSetting | None:
    """Return the setting for a model with these levels.

    Chooses the highest level up to `wanted`, or the lowest one if all are higher. OFF is chosen
    only if it is wanted. A budget leaves tokens for the answer within `max_output`. Returns None if
    no level fits or if `max_output` is too small for a budget and an answer.
    """
    order = list(ThinkingLevel)
    levels = sorted(
        (level for level in available if wanted is ThinkingLevel.OFF or level is not ThinkingLevel.OFF),
        key=order.index,
    )
    if not levels:
        return None
    fitting = [level for level in levels if order.index(level) <= order.index(wanted)]
    level = fitting[-1] if fitting else levels[0]
    value = available[level]
    if isinstance(value, int) and value > 0:
        value = min(value, max_output - MIN_BUDGET_TOKENS)
        if value < MIN_BUDGET_TOKENS:
            return None
    return ThinkingSetting(level, value)
