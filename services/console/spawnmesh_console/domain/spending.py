"""The spending of a tenant: totals, days as bars, and agents and models by their share."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import ROUND_DOWN, Decimal
from enum import StrEnum

from spawnmesh_console.domain.amounts import bar_percent, percent_text

SPANS = (7, 30, 90)
"""The numbers of days that can be chosen."""

_MAX_ROWS = 25
"""The rows of a table. The others are one row together."""
_SLOT, _HEIGHT = 10.0, 100.0
"""The width of a day in the chart, and the height of the highest bar."""
_BAR, _BAR_OF_WEEK = 7.0, 4.0
"""The widths of a bar. Few bars need not be as wide."""

_PLACES = ((1_000_000, 2), (10_000, 4))
"""The least amounts, in millionths, for which so many digits behind the point are enough."""
_DIRECT_CALLS, _FURTHER_AGENTS = "", "*"


class SpendMeasure(StrEnum):
    """The amount that bars show."""

    COST = "cost"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class SpentAmount:
    """The usage and the cost of calls. The input includes the tokens from caches."""

    call_count: int = 0
    input_count: int = 0
    cached_count: int = 0
    output_count: int = 0
    cost_micros: int = 0

    def __add__(self, other: "SpentAmount") -> "SpentAmount":
        return SpentAmount(
            self.call_count + other.call_count,
            self.input_count + other.input_count,
            self.cached_count + other.cached_count,
            self.output_count + other.output_count,
            self.cost_micros + other.cost_micros,
        )

    @property
    def cached_share(self) -> str:
        """The share of the input that was read from a cache."""
        return percent_text(self.cached_count, self.input_count)

    def measured(self, measure: SpendMeasure) -> int:
        """Return the amount that a bar shows."""
        return self.cost_micros if measure is SpendMeasure.COST else self.input_count + self.output_count


@dataclass(frozen=True, slots=True)
class ListedSpend:
    """A row of the mesh: of a day, an agent or a model."""

    spent: SpentAmount
    day: date | None = None
    agent_id: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class DayBudget:
    """The limit of today's spending, and what counts against it, in millionths of the currency."""

    limit_micros: int
    spent_micros: int
    reserved_micros: int
    renew_time: datetime

    @property
    def is_reached(self) -> bool:
        """True if calls are refused."""
        return self.spent_micros >= self.limit_micros

    @property
    def left_micros(self) -> int:
        """The part that is neither spent nor reserved."""
        return max(self.limit_micros - self.spent_micros - self.reserved_micros, 0)

    def text_of(self, micros: int) -> str:
        """Return an amount with as many digits as the limit needs."""
        return amount_text(micros, self.limit_micros)

    @property
    def share(self) -> str:
        """The share of the limit that is spent. It can be more than 100 percent."""
        return percent_text(self.spent_micros, self.limit_micros)

    @property
    def spent_percent(self) -> float:
        """The width of the bar of what is spent, at most 100."""
        return bar_percent(self.spent_micros, self.limit_micros)

    @property
    def reserved_percent(self) -> float:
        """The width of the bar of what is reserved, behind that of what is spent."""
        return min(bar_percent(self.reserved_micros, self.limit_micros), 100.0 - self.spent_percent)


@dataclass(frozen=True, slots=True)
class ListedSpending:
    """The rows of a span of days: by day, by agent and by model."""

    days: Sequence[ListedSpend] = ()
    agents: Sequence[ListedSpend] = ()
    models: Sequence[ListedSpend] = ()
    budget: DayBudget | None = None
    currency: str = ""


@dataclass(frozen=True, slots=True)
class DayBar:
    """A day of the chart, which begins at `slot_x`, with the place of its bar."""

    day: date
    spent: SpentAmount
    slot_x: float
    x: float
    y: float
    width: float
    height: float
    slot_width: float = _SLOT


@dataclass(frozen=True, slots=True)
class NamedSpend:
    """A row of a table: `name` is an agent or a model, and `words` stand for what is neither.

    `percent` is the width of its bar.
    """

    name: str
    words: str
    spent: SpentAmount
    share: str
    percent: float


@dataclass(frozen=True, slots=True)
class TodayView:
    """The spending of today, and its budget."""

    spent: SpentAmount
    budget: DayBudget | None
    currency: str

    @property
    def amount(self) -> str:
        """The cost of today's calls; if they cost nothing, their tokens."""
        return _amount_of(self.spent, _measure_of(self.spent), self.spent)

    @property
    def unit(self) -> str:
        """The currency, or tokens."""
        return _unit_of(_measure_of(self.spent), self.currency)


@dataclass(frozen=True, slots=True)
class SpendView:
    """The page of a span of days."""

    days: tuple[DayBar, ...]
    agents: tuple[NamedSpend, ...]
    models: tuple[NamedSpend, ...]
    total: SpentAmount
    measure: SpendMeasure
    currency: str
    today: TodayView

    @property
    def is_empty(self) -> bool:
        """True if nothing was called in the span."""
        return not self.total.call_count

    @property
    def has_prices(self) -> bool:
        """False if calls cost nothing: then the bars show tokens."""
        return self.measure is SpendMeasure.COST

    def text_of(self, spent: SpentAmount) -> str:
        """Return the amount that a bar shows. Each cost has as many digits as the total needs."""
        return _amount_of(spent, self.measure, self.total)

    def text_with_unit(self, spent: SpentAmount) -> str:
        """Return the amount that a bar shows, with its unit."""
        return f"{self.text_of(spent)} {_unit_of(self.measure, self.currency)}"

    @property
    def is_week(self) -> bool:
        """True if there is room for a label below each day."""
        return len(self.days) == SPANS[0]

    @property
    def chart_width(self) -> float:
        """The width of the chart, in the units of its bars."""
        return _SLOT * len(self.days)

    @property
    def highest(self) -> DayBar:
        """The day with the highest bar, the latest of several."""
        return max(self.days, key=lambda one: (one.height, one.day))

    @property
    def used_days(self) -> list[DayBar]:
        """The days with calls, newest first."""
        return [one for one in reversed(self.days) if one.spent.call_count]


def spend_view(listed: ListedSpending, first: date, last: date) -> SpendView:
    """Return the page of the days from `first` to `last`, which is today."""
    total = sum((one.spent for one in listed.days), SpentAmount())
    measure = _measure_of(total)
    spent_of = {one.day: one.spent for one in listed.days}
    span = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    spent = [spent_of.get(day, SpentAmount()) for day in span]
    highest = max(one.measured(measure) for one in spent)
    width = _BAR_OF_WEEK if len(span) == SPANS[0] else _BAR
    return SpendView(
        days=tuple(
            _bar(number * _SLOT, width, day, one, bar_percent(one.measured(measure), highest))
            for number, (day, one) in enumerate(zip(span, spent, strict=True))
        ),
        agents=_named(listed.agents, _agent, measure, "agents"),
        models=_named(listed.models, lambda one: (one.model, ""), measure, "models"),
        total=total,
        measure=measure,
        currency=listed.currency,
        today=TodayView(spent[-1], listed.budget, listed.currency),
    )


def today_view(listed: ListedSpending) -> TodayView:
    """Return what is spent today, from a list of this day alone."""
    return TodayView(sum((one.spent for one in listed.days), SpentAmount()), listed.budget, listed.currency)


def amount_text(micros: int, largest_micros: int) -> str:
    """Return an amount of money with as many digits behind the point as the largest amount of its
    column needs: 2, 4 or 6, without rounding up. A smaller one that is not 0 is `< 0.01`.
    """
    places = next(
        (places for least, places in _PLACES if largest_micros >= least), 6 if largest_micros else 2
    )
    scale = Decimal(1).scaleb(-places)
    cut = (Decimal(micros) / 1_000_000).quantize(scale, ROUND_DOWN)
    return f"{cut:,}" if cut or not micros else f"< {scale}"


def _measure_of(spent: SpentAmount) -> SpendMeasure:
    return SpendMeasure.COST if spent.cost_micros or not spent.call_count else SpendMeasure.TOKENS


def _amount_of(spent: SpentAmount, measure: SpendMeasure, total: SpentAmount) -> str:
    if measure is SpendMeasure.COST:
        return amount_text(spent.cost_micros, total.cost_micros)
    return f"{spent.measured(measure):,}"


def _unit_of(measure: SpendMeasure, currency: str) -> str:
    return currency if measure is SpendMeasure.COST else "tokens"


def _bar(slot_x: float, width: float, day: date, spent: SpentAmount, height: float) -> DayBar:
    return DayBar(day, spent, slot_x, slot_x + (_SLOT - width) / 2, round(_HEIGHT - height, 2), width, height)


def _agent(one: ListedSpend) -> tuple[str, str]:
    """Return the id of the agent, or the words for what is no agent."""
    if one.agent_id == _DIRECT_CALLS:
        return "", "Direct calls"
    return ("", "Further agents") if one.agent_id == _FURTHER_AGENTS else (one.agent_id, "")


def _named(
    rows: Iterable[ListedSpend],
    name: Callable[[ListedSpend], tuple[str, str]],
    measure: SpendMeasure,
    several: str,
) -> tuple[NamedSpend, ...]:
    """Return the rows with their shares, the largest first, and one row for all beyond the last."""
    ordered = sorted(
        ((*name(one), one.spent) for one in rows),
        key=lambda row: (-row[2].measured(measure), -row[2].call_count, row[0]),
    )
    whole = sum(spent.measured(measure) for *_, spent in ordered)
    if len(ordered) > _MAX_ROWS:
        rest = ordered[_MAX_ROWS - 1 :]
        words = f"{len(rest):,} more {several}"
        ordered = [*ordered[: _MAX_ROWS - 1], ("", words, sum((spent for *_, spent in rest), SpentAmount()))]
    return tuple(
        NamedSpend(
            one,
            words,
            spent,
            percent_text(spent.measured(measure), whole),
            bar_percent(spent.measured(measure), whole),
        )
        for one, words, spent in ordered
    )
