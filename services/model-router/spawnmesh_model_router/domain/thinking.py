"""How much a model is told to think: levels of the contract on one side, a provider's own words or budgets on the other."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MIN_BUDGET_TOKENS: Final = 1024
"""The smallest budget that every provider with budgets takes, and what an answer is left at least beside one."""


class ThinkingLevel(StrEnum):
    """Levels, least first; names are those of the contract."""

    OFF = "off"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class Told:
    """A level, and what the provider is told: a word of its own, or a budget in tokens, of which 0 is none at all."""

    level: ThinkingLevel
    value: int | str


def choose(wanted: ThinkingLevel, has: Mapping[ThinkingLevel, int | str], max_output: int) -> Told | None:
    """What a model with these levels is told: the highest up to `wanted`, or else its lowest; OFF only where OFF is wanted.

    A budget leaves the answer room within `max_output` tokens; None where there is no room for both, and where no level fits.
    """
    order = list(ThinkingLevel)
    levels = sorted(
        (one for one in has if wanted is ThinkingLevel.OFF or one is not ThinkingLevel.OFF), key=order.index
    )
    if not levels:
        return None
    fitting = [one for one in levels if order.index(one) <= order.index(wanted)]
    level = fitting[-1] if fitting else levels[0]
    value = has[level]
    if isinstance(value, int) and value > 0:
        value = min(value, max_output - MIN_BUDGET_TOKENS)
        if value < MIN_BUDGET_TOKENS:
            return None
    return Told(level, value)
