"""Due times of cron lines, where clocks are set and after long outages."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from spawnmesh_session.domain import schedules
from spawnmesh_session.domain.schedules import (
    MAX_CAUGHT_UP,
    newest_due,
    next_due,
    upcoming_due,
)

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
NOW = datetime(2027, 6, 1, 12, 0, 30, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

# Just before clocks are set forward, and back: by an hour, and in Lord Howe by half an hour.
FORWARD = {
    BERLIN: datetime(2027, 3, 28, 0, 30, tzinfo=UTC),
    NEW_YORK: datetime(2027, 3, 14, 6, 30, tzinfo=UTC),
    LORD_HOWE: datetime(2027, 10, 2, 15, 0, tzinfo=UTC),
}
BACK = {
    BERLIN: datetime(2027, 10, 30, 23, 30, tzinfo=UTC),
    NEW_YORK: datetime(2027, 11, 7, 4, 30, tzinfo=UTC),
    LORD_HOWE: datetime(2027, 4, 3, 13, 30, tzinfo=UTC),
}
LINES = (
    "* * * * *",
    "*/7 * * * *",
    "45 * * * *",
    "0 * * * *",
    "*/30 2 * * *",
    "15,45 1-3 * * *",
    "30 1 * * *",
    "30 2 * * *",
    "0 */3 * * *",
    "*/10 3 * * *",
    "0 0 1 * MON",
    "0 12 L * *",
)


def shown(cron: str, time_zone: str, after: datetime, count: int) -> list[str]:
    """Return the next due times as a clock on the wall shows them, with its offset."""
    zone = ZoneInfo(time_zone)
    return [one.astimezone(zone).strftime("%H:%M%z") for one in upcoming_due(cron, time_zone, after, count)]


def brute_force(cron: str, time_zone: str, after: datetime, until: datetime) -> list[datetime]:
    """Return the due times by looking at what the clock on the wall shows in each minute.

    Supports `*`, `*/n`, lists and ranges of the minute and the hour alone. What is due in a gap is
    due at its end. What a clock shows twice is due once, unless the minute or the hour is a star.
    """
    zone = ZoneInfo(time_zone)
    minutes, hours = (_values(field, size) for field, size in zip(cron.split()[:2], (60, 24), strict=True))
    is_fixed = "*" not in cron.split()[0] + cron.split()[1]
    found: list[datetime] = []
    at = after.replace(second=0, microsecond=0)
    while (at := at + MINUTE) <= until:
        here, before = at.astimezone(zone), (at - MINUTE).astimezone(zone)
        wall, earlier = here.replace(tzinfo=None), before.replace(tzinfo=None)
        # The minutes that the clock shows now, or that it leapt over to get here.
        leapt = [wall - step * MINUTE for step in range(max(1, (wall - earlier) // MINUTE))]
        is_due = any(one.minute in minutes and one.hour in hours for one in leapt)
        if is_due and not (is_fixed and here.fold):
            found.append(at)
    return found


def _values(field: str, size: int) -> set[int]:
    values: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = ("0", "", str(size - 1)) if span == "*" else span.partition("-")
        values |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return values


@pytest.mark.parametrize("time_zone", FORWARD)
def test_a_fixed_time_that_clocks_leave_out_is_due_at_the_end_of_the_gap(time_zone: str) -> None:
    offsets = {BERLIN: ("03:00+0200", "02:15+0200"), NEW_YORK: ("03:00-0400", "02:15-0400")}
    in_gap, next_day = offsets.get(time_zone, ("02:30+1100", "02:15+1100"))
    assert shown("15 2 * * *", time_zone, FORWARD[time_zone], 2) == [in_gap, next_day]


@pytest.mark.parametrize("cron", ["*/30 2 * * *", "0 2 * * *", "0,15 2 * * *", "0-59 2 * * *", "0 2,3 * * *"])
def test_all_that_is_due_in_the_gap_is_due_once_at_its_end(cron: str) -> None:
    [due, following] = upcoming_due(cron, BERLIN, FORWARD[BERLIN], 2)
    assert due == datetime(2027, 3, 28, 1, tzinfo=UTC)
    assert following - due > 20 * HOUR


def test_an_hour_of_a_step_that_clocks_leave_out_is_due_at_the_end_of_the_gap() -> None:
    assert shown("0 */2 * * *", BERLIN, FORWARD[BERLIN], 3) == ["03:00+0200", "04:00+0200", "06:00+0200"]


def test_a_line_of_every_hour_does_not_repeat_the_end_of_the_gap() -> None:
    assert shown("0 * * * *", NEW_YORK, FORWARD[NEW_YORK], 3) == ["03:00-0400", "04:00-0400", "05:00-0400"]


@pytest.mark.parametrize(
    ("time_zone", "cron", "first", "second"),
    [
        (BERLIN, "30 2 * * *", "02:30+0200", "02:30+0100"),
        (NEW_YORK, "30 1 * * *", "01:30-0400", "01:30-0500"),
        (LORD_HOWE, "45 1 * * *", "01:45+1100", "01:45+1030"),
    ],
)
def test_a_fixed_time_that_clocks_show_twice_is_due_once(
    time_zone: str, cron: str, first: str, second: str
) -> None:
    assert shown(cron, time_zone, BACK[time_zone], 2) == [first, second]
    due, following = upcoming_due(cron, time_zone, BACK[time_zone], 2)
    assert following - due > DAY
    assert next_due(cron, time_zone, due + MINUTE) == following


@pytest.mark.parametrize(
    ("time_zone", "cron", "expected"),
    [
        (BERLIN, "30 * * * *", ["02:30+0200", "02:30+0100", "03:30+0100"]),
        (BERLIN, "*/30 2 * * *", ["02:00+0200", "02:30+0200", "02:00+0100", "02:30+0100"]),
        (NEW_YORK, "0 * * * *", ["01:00-0400", "01:00-0500", "02:00-0500"]),
        (LORD_HOWE, "45 * * * *", ["00:45+1100", "01:45+1100", "01:45+1030", "02:45+1030"]),
        (LORD_HOWE, "0 */3 * * *", ["03:00+1030", "06:00+1030"]),
        (LORD_HOWE, "*/20 3 * * *", ["03:00+1030", "03:20+1030", "03:40+1030"]),
    ],
)
def test_a_star_goes_on_in_both_hours(time_zone: str, cron: str, expected: list[str]) -> None:
    assert shown(cron, time_zone, BACK[time_zone], len(expected)) == expected


def test_clocks_that_are_set_at_midnight_leave_out_no_day() -> None:
    before = datetime(2027, 9, 5, 3, 30, tzinfo=UTC)  # Clocks go from 00:00 to 01:00 at 04:00 UTC.
    assert shown("15 0 * * *", "America/Santiago", before, 2) == ["01:00-0300", "00:15-0300"]


@given(
    cron=st.sampled_from([line for line in LINES if line.endswith("* * *")]),
    place=st.sampled_from([*FORWARD.items(), *BACK.items()]),
    skew=st.integers(-180, 180),
    span=st.integers(1, 2_000),
)
@example(cron="0 */3 * * *", place=(LORD_HOWE, BACK[LORD_HOWE]), skew=0, span=300)
@example(cron="*/30 2 * * *", place=(BERLIN, FORWARD[BERLIN]), skew=0, span=300)
def test_the_due_times_are_those_of_a_clock_on_the_wall(
    cron: str, place: tuple[str, datetime], skew: int, span: int
) -> None:
    time_zone, change = place
    after = change + skew * MINUTE
    until = after + span * MINUTE
    expected = brute_force(cron, time_zone, after, until)
    assert newest_due(cron, time_zone, after, until) == expected[-MAX_CAUGHT_UP:]
    assert upcoming_due(cron, time_zone, after, len(expected)) == expected


@given(
    cron=st.sampled_from(LINES),
    time_zone=st.sampled_from([*FORWARD, "UTC", "America/Santiago", "Asia/Kathmandu"]),
    since=st.timedeltas(timedelta(0), timedelta(days=1_000)),
    span=st.timedeltas(timedelta(0), timedelta(days=40)),
    split=st.floats(0, 1),
)
def test_due_times_do_not_depend_on_where_the_search_begins(
    cron: str, time_zone: str, since: timedelta, span: timedelta, split: float
) -> None:
    start = NOW + since
    until, middle = start + span, start + span * split
    found = newest_due(cron, time_zone, start, until)
    assert len(found) <= MAX_CAUGHT_UP
    assert found == sorted(set(found))
    assert all(start < one <= until for one in found)
    parts = newest_due(cron, time_zone, start, middle) + newest_due(cron, time_zone, middle, until)
    assert parts[-MAX_CAUGHT_UP:] == found
    upcoming = upcoming_due(cron, time_zone, start, 5)
    assert upcoming == sorted(set(upcoming))
    assert [one for one in upcoming if one <= until] == found[: len(upcoming)] or len(found) == MAX_CAUGHT_UP


class Counted(schedules.CronSim):  # type: ignore[misc]
    """A cron line that counts the times that it names."""

    count = 0

    def __next__(self) -> datetime:
        Counted.count += 1
        return super().__next__()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("cron", "outage", "expected", "most"),
    [
        ("* * * * *", timedelta(days=31), MAX_CAUGHT_UP, 2 * MAX_CAUGHT_UP),
        ("* * * * *", timedelta(days=4_000), MAX_CAUGHT_UP, 2 * MAX_CAUGHT_UP),
        ("*/5 * * * *", timedelta(days=31), MAX_CAUGHT_UP, 5 * MAX_CAUGHT_UP),
        ("0 0 29 2 *", timedelta(days=36_525), 25, 100),
        ("0 3 * * *", timedelta(days=31), 31, 100),
    ],
)
def test_an_outage_costs_a_bounded_number_of_steps(
    monkeypatch: pytest.MonkeyPatch, cron: str, outage: timedelta, expected: int, most: int
) -> None:
    monkeypatch.setattr(schedules, "CronSim", Counted)
    Counted.count = 0
    assert len(newest_due(cron, BERLIN, NOW - outage, NOW)) == expected
    assert Counted.count <= most


def test_a_clock_that_was_set_back_finds_nothing() -> None:
    assert newest_due("* * * * *", "UTC", NOW, NOW - HOUR) == []
    assert newest_due("* * * * *", "UTC", NOW, NOW) == []


def test_a_leap_day_is_found_years_ahead() -> None:
    due = upcoming_due("0 0 29 2 *", "UTC", NOW, 2)
    assert due == [datetime(2028, 2, 29, tzinfo=UTC), datetime(2032, 2, 29, tzinfo=UTC)]


def test_of_both_days_either_suffices() -> None:
    due = upcoming_due("0 0 13 * FRI", "UTC", datetime(2027, 8, 1, tzinfo=UTC), 3)
    assert [one.day for one in due] == [6, 13, 20]
