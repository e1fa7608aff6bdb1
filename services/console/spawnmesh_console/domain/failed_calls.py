"""The failed calls of the last hours: by model and reason, and hours as bars."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from spawnmesh_console.domain.amounts import bar_percent, counted
from spawnmesh_console.domain.cooldowns import reason_words

HOURS = 24

_MAX_ROWS = 25
"""The rows of the table. The others are one row together."""
_SLOT, _BAR, _HEIGHT = 10.0, 6.0, 100.0
"""The width of an hour in the chart and of its bar, and the height of the highest bar."""


@dataclass(frozen=True, slots=True)
class FailedCalls:
    """The number of failed calls, and of those after which another model was called or none."""

    failure_count: int = 0
    failover_count: int = 0
    end_count: int = 0

    def __add__(self, other: "FailedCalls") -> "FailedCalls":
        return FailedCalls(
            self.failure_count + other.failure_count,
            self.failover_count + other.failover_count,
            self.end_count + other.end_count,
        )


@dataclass(frozen=True, slots=True)
class ListedFailures:
    """A row of the mesh: of a model and a reason, or of an hour."""

    calls: FailedCalls
    hour: datetime | None = None
    model: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FailureLine:
    """A row of the table. `percent` is the width of its bar. The row of many has no model."""

    model: str
    words: str
    reason: str
    calls: FailedCalls
    percent: float


@dataclass(frozen=True, slots=True)
class HourBar:
    """An hour of the chart, which begins at `slot_x`, with the place of its bar."""

    hour: datetime
    calls: FailedCalls
    slot_x: float
    x: float
    y: float
    width: float
    height: float
    slot_width: float = _SLOT


@dataclass(frozen=True, slots=True)
class FailuresView:
    """The failed calls of the last 24 hours."""

    lines: Sequence[FailureLine]
    hours: Sequence[HourBar]
    total: FailedCalls

    @property
    def chart_width(self) -> float:
        """The width of the chart, in the units of its bars."""
        return _SLOT * len(self.hours)

    @property
    def highest(self) -> HourBar:
        """The hour with the highest bar, the latest of several."""
        return max(self.hours, key=lambda one: (one.calls.failure_count, one.hour))

    @property
    def used_hours(self) -> list[HourBar]:
        """The hours with failed calls, newest first."""
        return [one for one in reversed(self.hours) if one.calls.failure_count]


def failures_view(
    by_model: Sequence[ListedFailures], by_hour: Sequence[ListedFailures], first: datetime
) -> FailuresView:
    """Return the view of the 24 hours that begin with `first`.

    `by_model` has a row for each model and reason.
    """
    calls_of = {one.hour: one.calls for one in by_hour}
    span = [first + timedelta(hours=number) for number in range(HOURS)]
    calls = [calls_of.get(hour, FailedCalls()) for hour in span]
    highest = max(one.failure_count for one in calls)
    return FailuresView(
        _lines(by_model),
        [
            _bar(number, hour, one, bar_percent(one.failure_count, highest))
            for number, (hour, one) in enumerate(zip(span, calls, strict=True))
        ],
        sum((one.calls for one in by_model), FailedCalls()),
    )


def _bar(number: int, hour: datetime, calls: FailedCalls, height: float) -> HourBar:
    x = number * _SLOT
    return HourBar(hour, calls, x, x + (_SLOT - _BAR) / 2, round(_HEIGHT - height, 2), _BAR, height)


def _lines(rows: Sequence[ListedFailures]) -> list[FailureLine]:
    """Return the rows, the largest first, and one for all beyond the last."""
    ordered = sorted(rows, key=lambda one: (-one.calls.failure_count, one.model, one.reason))
    shown, rest = ordered, ordered[:0]
    if len(ordered) > _MAX_ROWS:
        shown, rest = ordered[: _MAX_ROWS - 1], ordered[_MAX_ROWS - 1 :]
    lines = [(one.model, reason_words(one.reason), one.reason, one.calls) for one in shown]
    if rest:
        words = counted(len(rest), "more model and reason", "more models and reasons")
        lines.append(("", words, "", sum((one.calls for one in rest), FailedCalls())))
    largest = max((calls.failure_count for *_, calls in lines), default=0)
    return [
        FailureLine(model, words, reason, calls, bar_percent(calls.failure_count, largest))
        for model, words, reason, calls in lines
    ]
