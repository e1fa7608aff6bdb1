"""The ticks of a time axis that begins at zero."""

from dataclasses import dataclass

from spawnmesh_console.domain.spans_of_time import span

_MAX_TICKS = 6
_NANOS = 1_000_000_000
_STEPS = (1, 2, 5)
_LARGE_STEPS = (15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400)
"""Above ten seconds, steps divide minutes, hours and days. In seconds."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A time on the axis. `x` is in percent of its length."""

    x: float
    words: str


def ticks(total_nanos: int) -> list[Tick]:
    """Return the ticks of an axis of this length, from zero on, at most seven."""
    step = _step(total_nanos)
    times = range(0, total_nanos + 1, step)
    return [Tick(round(100 * time / max(total_nanos, 1), 3), _words(time)) for time in times]


def _step(total_nanos: int) -> int:
    least = max(-(-total_nanos // _MAX_TICKS), 1)
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
