"""Schedules: cron lines, their due times, and which of these are fired."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from importlib.resources import files
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from spawnmesh_core.errors import MeshError, invalid
from spawnmesh_core.ids import IdKind, derived_id
from spawnmesh_core.reasons import Reason

from spawnmesh_session.domain.etags import etag_of_values

DEFAULT_ZONE = "UTC"
MAX_SCHEDULE_COUNT = 100
"""The most schedules of a tenant."""
MAX_CAUGHT_UP = 100
"""The most missed due times of a schedule that are fired, or are in its history."""
MISSED_AFTER = timedelta(minutes=1)
"""A due time that is found later than this was missed."""
FAILED_AFTER = timedelta(minutes=10)
"""A spawn that may succeed later is tried for so long."""
KEPT_SESSION_COUNT = 20
"""The newest sessions of a schedule that the overlap policies look at."""
UPCOMING_COUNT = 5

_BEGINNING = datetime.min.replace(tzinfo=UTC)
_FIELD_COUNT = 5
_TOO_OLD = timedelta(hours=1)
_TOO_OLD_TO_CATCH_UP = timedelta(hours=20)  # A request_id is remembered for a day.
_AHEAD = timedelta(minutes=5)
# Due times are at least a minute apart, so this window has at most MAX_CAUGHT_UP of them.
_FIRST_WINDOW = timedelta(minutes=MAX_CAUGHT_UP)
_WIDER = 4


class OverlapPolicy(StrEnum):
    """The policies for a due time while the session of an earlier firing goes on."""

    SKIP = "SKIP"
    ALLOW = "ALLOW"
    REPLACE = "REPLACE"


class CatchUpPolicy(StrEnum):
    """The policies for due times that were missed."""

    NONE = "NONE"
    LATEST = "LATEST"
    ALL = "ALL"


class FiringOutcome(StrEnum):
    """The results of a due time. DUE is none so far, and is shown to no caller."""

    DUE = "DUE"
    SPAWNED = "SPAWNED"
    SKIPPED = "SKIPPED"
    MISSED = "MISSED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule. `schedule_id` names one life of its name.

    `spawn` is a serialized ScheduledSpawn. Due times up to `cursor_time` are in the history, or
    count no more. `session_ids` are the sessions that were spawned last, and may go on. Until
    `busy_until`, a worker may be firing a due time.
    """

    name: str
    cron: str
    time_zone: str
    spawn: bytes
    overlap: OverlapPolicy
    catch_up: CatchUpPolicy
    schedule_id: str = ""
    paused: bool = False
    cursor_time: datetime = _BEGINNING
    session_ids: tuple[str, ...] = ()
    busy_until: datetime | None = None
    version: int = 0
    create_time: datetime | None = None
    updated_by: str = ""

    @property
    def etag(self) -> str:
        """The etag: a hash of the life of the name and its version."""
        return etag_of_values(self.schedule_id, self.version)

    @property
    def content(self) -> tuple[object, ...]:
        """The values that people change."""
        return self.cron, self.time_zone, self.spawn, self.overlap, self.catch_up

    def is_due_alike(self, other: "Schedule") -> bool:
        """Return whether both have the same due times."""
        return (self.cron, self.time_zone) == (other.cron, other.time_zone)


@dataclass(frozen=True, slots=True)
class Firing:
    """A due time, or a call of RunSchedule, with its result.

    `session_id` is the session that was spawned, or for SKIPPED the one that went on.
    """

    firing_id: str
    due_time: datetime
    fire_time: datetime
    outcome: FiringOutcome
    session_id: str = ""
    error_reason: str = ""
    error_message: str = ""
    is_manual: bool = False


@dataclass(frozen=True, slots=True)
class DuePlan:
    """The due times since the cursor: those to fire, and those that were missed, oldest first."""

    to_fire: Sequence[datetime]
    missed: Sequence[datetime]


def check_due_times(cron: str, time_zone: str, now: datetime) -> None:
    """Raise INVALID_REQUEST for a cron line that is malformed or never due, or an unknown zone."""
    if time_zone not in _zone_names():
        raise invalid("schedule.time_zone", "is no time zone of the IANA database")
    if len(cron.split()) != _FIELD_COUNT:
        raise invalid("schedule.cron", "has five fields: minute, hour, day of month, month, day of week")
    try:
        upcoming = next_due(cron, time_zone, now)
    except CronSimError as error:
        raise invalid("schedule.cron", f"is malformed: {str(error).lower()}") from None
    if upcoming is None:
        raise invalid("schedule.cron", "is never due")


def zone_of(time_zone: str) -> ZoneInfo:
    """Return the time zone. Raise KeyError for one that does not exist."""
    return ZoneInfo(time_zone)


@cache
def _zone_names() -> frozenset[str]:
    """Return the names of the package `tzdata`, which are the same on every machine."""
    return frozenset(files("tzdata").joinpath("zones").read_text().split())


def next_due(cron: str, time_zone: str, after: datetime) -> datetime | None:
    """Return the first due time after a time; None if there is none within half a century."""
    return next(iter(upcoming_due(cron, time_zone, after, 1)), None)


def upcoming_due(cron: str, time_zone: str, after: datetime, count: int) -> list[datetime]:
    """Return the first due times after a time, at most `count`, in UTC."""
    return list(islice(_due_after(cron, time_zone, after), count))


def newest_due(cron: str, time_zone: str, after: datetime, until: datetime) -> list[datetime]:
    """Return the newest due times after one time and until another, at most MAX_CAUGHT_UP, in UTC.

    The cost is bounded, however long that time is.
    """
    window = _FIRST_WINDOW
    while True:
        begin = max(after, until - window)
        found = list(takewhile(lambda one: one <= until, _due_after(cron, time_zone, begin)))
        if begin == after or len(found) >= MAX_CAUGHT_UP:
            return found[-MAX_CAUGHT_UP:]
        window *= _WIDER


def _due_after(cron: str, time_zone: str, after: datetime) -> Iterator[datetime]:
    """Yield the due times after a time, oldest first, in UTC.

    The library gets times of a clock on the wall alone: with a time zone, it leaves out due times
    where clocks change while the minute or the hour is a star.
    """
    zone = zone_of(time_zone)
    is_fixed = not any(field.startswith("*") for field in cron.split()[:2])
    again: deque[datetime] = deque()  # The second ones of the times that clocks show twice.
    newest = after
    for shown in CronSim(cron, _shown_from(after, zone)):
        wall = shown.replace(tzinfo=zone)
        first, second = wall.astimezone(UTC), wall.replace(fold=1).astimezone(UTC)
        if second < first:  # Clocks leave this time out.
            first = second = _end_of_gap(second, first, zone)
        if second > first and not is_fixed:
            again.append(second)
        while again and again[0] <= first:
            if (due := again.popleft()) > newest:
                yield (newest := due)
        if first > newest:
            yield (newest := first)


def _shown_from(after: datetime, zone: ZoneInfo) -> datetime:
    """Return a time on the wall before all that clocks show after the time, also if set back."""
    shown = (one.astimezone(zone).utcoffset() or timedelta(0) for one in (after, after + timedelta(days=1)))
    return after.astimezone(UTC).replace(tzinfo=None) + min(shown)


def _end_of_gap(before: datetime, behind: datetime, zone: ZoneInfo) -> datetime:
    """Return when clocks were set forward, which is after `before` and not after `behind`."""
    offset = behind.astimezone(zone).utcoffset()
    while behind - before > timedelta(seconds=1):
        middle = before + timedelta(seconds=(behind - before) // timedelta(seconds=2))
        if middle.astimezone(zone).utcoffset() == offset:
            behind = middle
        else:
            before = middle
    return behind


def cursor_of(schedule: Schedule, now: datetime) -> datetime:
    """Return the time behind which due times count.

    A cursor far ahead is of a clock that was wrong. Due times that were fired have their firings.
    """
    return now if schedule.cursor_time > now + _AHEAD else schedule.cursor_time


def is_too_old(schedule: Schedule, due: Firing, now: datetime) -> bool:
    """Return whether a firing that is DUE, and that spawned nothing, was missed since."""
    is_caught_up = schedule.catch_up is CatchUpPolicy.ALL
    return now - due.fire_time > (_TOO_OLD_TO_CATCH_UP if is_caught_up else _TOO_OLD)


def plan_due(schedule: Schedule, now: datetime) -> DuePlan:
    """Return what is to be done about the due times behind the cursor."""
    due = newest_due(schedule.cron, schedule.time_zone, cursor_of(schedule, now), now)
    in_time = [one for one in due if now - one <= MISSED_AFTER]
    late = due[: len(due) - len(in_time)]
    match schedule.catch_up:
        case CatchUpPolicy.ALL:
            return DuePlan(due, ())
        case CatchUpPolicy.LATEST if late and not in_time:
            return DuePlan(late[-1:], late[:-1])
        case _:
            return DuePlan(in_time, late)


def firing_id_of_due(schedule_id: str, due_time: datetime) -> str:
    """Return the id of the firing for a due time."""
    return derived_id(IdKind.FIRING, f"{due_time.astimezone(UTC).isoformat()}:{schedule_id}")


def firing_id_of_call(schedule_id: str, request_id: str) -> str:
    """Return the id of the firing for a call of RunSchedule."""
    return derived_id(IdKind.FIRING, f"run {request_id}:{schedule_id}")


def check_schedule_count(count: int) -> None:
    """Raise SCHEDULE_COUNT_EXCEEDED if a tenant with so many schedules may have no further one."""
    if count >= MAX_SCHEDULE_COUNT:
        raise MeshError(
            Reason.SCHEDULE_COUNT_EXCEEDED,
            f"the tenant has {count} schedules, and {MAX_SCHEDULE_COUNT} are allowed; delete one",
            facts={"limit": MAX_SCHEDULE_COUNT, "schedules": count},
        )
