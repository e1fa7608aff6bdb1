"""The cooldowns of all providers as lanes on one time line around now."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from spawnmesh_console.domain.cooldowns import CooldownView, ProviderView
from spawnmesh_console.domain.spans_of_time import age
from spawnmesh_console.domain.time_axis import Tick, ticks_around_now

_MAX_LANES = 40
_NOW_PERCENT, _NOW_PERCENT_OF_PAST = 100 / 3, 200 / 3
"""The place of now: with a cooldown that is active, and without one."""
_LEAST_PERCENT = 0.6
_LEAST_SPAN = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class LanePart:
    """A part of a lane, in percent of the axis."""

    x: float
    width: float


@dataclass(frozen=True, slots=True)
class CooldownLane:
    """A cooldown and the parts of its lane: the one before now, and the one that is still to come.

    One that ended has a `past` alone, or nothing if it ended before the axis begins. `words` say
    the same.
    """

    cooldown: CooldownView
    past: LanePart | None
    coming: LanePart | None
    words: str

    @property
    def is_over(self) -> bool:
        """True if the cooldown has ended."""
        return self.coming is None


@dataclass(frozen=True, slots=True)
class CooldownTimeLine:
    """The lanes on one axis: the active ones first, in the order of their ends; then those that
    ended, the newest first. `hidden_count` further ones are not drawn.
    """

    lanes: Sequence[CooldownLane]
    ticks: Sequence[Tick]
    now_x: float
    hidden_count: int


def cooldown_time_line(providers: Sequence[ProviderView], now: datetime) -> CooldownTimeLine | None:
    """Return the time line of all cooldowns; None without any.

    The axis is as long as the active cooldowns need. Without an active one it is as long as those
    that ended need.
    """
    cooldowns = [one for provider in providers for one in provider.cooldowns]
    if not cooldowns:
        return None
    active = sorted((one for one in cooldowns if not one.is_over(now)), key=lambda one: one.until)
    ended = sorted((one for one in cooldowns if one.is_over(now)), key=lambda one: one.until, reverse=True)
    shown = [*active, *ended][:_MAX_LANES]
    now_percent = _NOW_PERCENT if active else _NOW_PERCENT_OF_PAST
    past = max(now - one.start for one in active or ended) / (now_percent / 100)
    coming = max(one.until - now for one in active) / (1 - now_percent / 100) if active else timedelta()
    total = max(past, coming, _LEAST_SPAN)
    begin = now - total * (now_percent / 100)

    def place(moment: datetime) -> float:
        return round(min(max(100 * ((moment - begin) / total), 0.0), 100.0), 3)

    lanes = [_lane(one, place(one.start), place(one.until), place(now), now) for one in shown]
    ticks = ticks_around_now(int(total.total_seconds() * 1_000_000_000), now_percent)
    return CooldownTimeLine(lanes, ticks, round(now_percent, 3), len(cooldowns) - len(shown))


def _lane(one: CooldownView, start_x: float, end_x: float, now_x: float, now: datetime) -> CooldownLane:
    began, ends = age(one.start, now), age(one.until, now)
    if one.is_over(now):
        past = _part(start_x, end_x) if end_x else None
        return CooldownLane(one, past, None, f"In cooldown from {began} to {ends}")
    coming = LanePart(now_x, round(max(end_x - now_x, _LEAST_PERCENT), 3))
    return CooldownLane(one, _part(start_x, now_x), coming, f"In cooldown from {began}; it ends {ends}")


def _part(start_x: float, end_x: float) -> LanePart:
    """Return the part, so wide that it can be seen."""
    width = max(end_x - start_x, _LEAST_PERCENT)
    return LanePart(round(max(end_x - width, 0.0), 3), round(width, 3))
