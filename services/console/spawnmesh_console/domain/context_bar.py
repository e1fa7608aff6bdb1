"""The bar that shows how the tokens of a context's budget are used."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

_MIN_PERCENT = 0.6
"""The least width of a piece that has tokens: a thinner one cannot be seen."""


class ContextPart(StrEnum):
    """The parts of a budget, in the order of the bar."""

    SYSTEM = "system"
    SUMMARY = "summary"
    WHOLE = "whole"
    STUBBED = "stubbed"
    CUT = "cut"
    STAND_IN = "stand-in"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class BarPiece:
    """A piece of the bar. `x` and `width` are in percent of the bar."""

    part: ContextPart
    token_count: int
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class ContextBar:
    """The pieces without gaps, from 0 to 100 percent. Their tokens sum to the budget, unless more
    than that is used: then `over_count` is the excess, and `budget_x` is where the budget ends.
    """

    pieces: tuple[BarPiece, ...]
    token_budget: int
    used_count: int
    over_count: int
    budget_x: float


def context_bar(token_counts: Mapping[ContextPart, int], token_budget: int) -> ContextBar:
    """Return the bar of these parts, with the rest of the budget as the free part.

    A part without tokens has no piece.
    """
    used = {
        part: token_counts.get(part, 0)
        for part in ContextPart
        if part is not ContextPart.FREE and token_counts.get(part, 0) > 0
    }
    used_count = sum(used.values())
    free = max(token_budget - used_count, 0)
    counts = used | ({ContextPart.FREE: free} if free else {})
    widths = _widths(list(counts.values()))
    pieces, x = [], 0.0
    for (part, count), width in zip(counts.items(), widths, strict=True):
        pieces.append(BarPiece(part, count, round(x, 3), round(width, 3)))
        x += width
    over = max(used_count - token_budget, 0)
    budget_x = round(100 * token_budget / used_count, 3) if over else 100.0
    return ContextBar(tuple(pieces), token_budget, used_count, over, budget_x)


def _widths(counts: list[int]) -> list[float]:
    """Return widths in percent, proportional except for the least width of small counts."""
    total = sum(counts)
    shares = [100 * count / total for count in counts]
    small = [share < _MIN_PERCENT for share in shares]
    rest = sum(share for share, is_small in zip(shares, small, strict=True) if not is_small)
    scale = (100 - _MIN_PERCENT * sum(small)) / rest if rest else 1.0
    return [
        _MIN_PERCENT if is_small else share * scale for share, is_small in zip(shares, small, strict=True)
    ]
