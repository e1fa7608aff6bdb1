"""The ticks of a time axis: of one that begins at zero, and of one around now."""

from dataclasses import dataclass
from datetime import timedelta

from spawnmesh_console.domain.spans_of_time import span, whole_span

_MAX_STEPS, _MAX_STEPS_AROUND_NOW = 6, 8
_NANOS = 1_000_000_000
_STEPS = (1, 2, 5)
_LARGE_STEPS = (15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400)
"""Above ten seconds, steps divide minutes, hours and days. In seconds."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A time on the axis. `x` is in percent of its length.

    Where there is little room, the words of every other tick are left out: those of `is_odd`.
    """

    x: float
    words: str
    is_odd: bool = False


def ticks(total_nanos: int) -> list[Tick]:
    """Return the ticks of an axis of this length, from zero on, at most seven."""
    step = _step(total_nanos, _MAX_STEPS)
    times = range(0, total_nanos + 1, step)
    return [
        Tick(round(100 * time / max(total_nanos, 1), 3), _words(time), bool(number % 2))
        for number, time in enumerate(times)
    ]


def ticks_around_now(total_nanos: int, now_percent: float) -> list[Tick]:
    """Return the ticks of an axis of this length, at most nine, in the order of time. Now is one of
    them, at `now_percent` of the length.
    """
    step = max(_step(total_nanos, _MAX_STEPS_AROUND_NOW), _NANOS)
    past = int(total_nanos * now_percent / 100)
    numbers = range(-(past // step), (total_nanos - past) // step + 1)
    share = 100 * step / max(total_nanos, 1)
    return [
        Tick(round(now_percent + number * share, 3), _words_around_now(number * step), bool(number % 2))
        for number in numbers
    ]


def _words_around_now(nanos: int) -> str:
    if nanos == 0:
        return "now"
    seconds = abs(nanos) // _NANOS
    words = f"{seconds} s" if seconds < 60 else whole_span(timedelta(seconds=seconds))
    return f"in {words}" if nanos > 0 else f"{words} ago"


def _step(total_nanos: int, max_steps: int) -> int:
    least = max(-(-total_nanos // max_steps), 1)
    small = [step * 10**power for power in range(11) for step in _STEPS if step * 10**power <= 10 * _NANOS]
    large = [seconds * _NANOS for seconds in _LARGE_STEPS]
    found = next((step for step in (*small, *large) if step >= least), None)
    day = _LARGE_STEPS[-1] * _NANOS
    return -(-least // day) * day if found is None else found


def _words(nanos: int) -> str:
    if nanos == 0:
        return "0"
    if nanos < _NANOS:
        return f"{nanos / 1_000_000:g} ms"
    return f"{nanos / _NANOS:g} s" if nanos < 60 * _NANOS else span(nanos / _NANOS)
