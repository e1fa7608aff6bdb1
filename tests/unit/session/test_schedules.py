"""Due times that are fired, lines and time zones that are refused, and the etags of schedules."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_core.errors import MeshError
from spawnmesh_session.domain import schedules
from spawnmesh_session.domain.schedules import (
    MAX_CAUGHT_UP,
    CatchUpPolicy,
    OverlapPolicy,
    Schedule,
    check_due_times,
    check_schedule_count,
    firing_id_of_call,
    firing_id_of_due,
    newest_due,
    plan_due,
)

NOW = datetime(2027, 6, 1, 12, 0, 30, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def schedule(cron: str = "* * * * *", **changes: object) -> Schedule:
    given_values: dict[str, object] = {
        "name": "nightly",
        "cron": cron,
        "time_zone": "UTC",
        "spawn": b"",
        "overlap": OverlapPolicy.SKIP,
        "catch_up": CatchUpPolicy.NONE,
        "schedule_id": "sch_1",
        "cursor_time": NOW - 30 * timedelta(seconds=1),
        "version": 1,
    }
    return Schedule(**{**given_values, **changes})  # type: ignore[arg-type]


LATE = [NOW.replace(second=0) - minutes * MINUTE for minutes in (4, 3, 2)]
IN_TIME = [NOW.replace(second=0)]


@pytest.mark.parametrize(
    ("policy", "to_fire", "missed"),
    [
        (CatchUpPolicy.NONE, IN_TIME, LATE),
        (CatchUpPolicy.LATEST, IN_TIME, LATE),
        (CatchUpPolicy.ALL, [*LATE, *IN_TIME], []),
    ],
)
def test_plan_with_a_time_that_is_due_by_now(
    policy: CatchUpPolicy, to_fire: list[datetime], missed: list[datetime]
) -> None:
    line = schedule("0,56-58 11,12 * * *", catch_up=policy, cursor_time=LATE[0] - MINUTE)
    plan = plan_due(line, NOW)
    assert (list(plan.to_fire), list(plan.missed)) == (to_fire, missed)


@pytest.mark.parametrize(
    ("policy", "to_fire", "missed"),
    [
        (CatchUpPolicy.NONE, [], LATE),
        (CatchUpPolicy.LATEST, LATE[-1:], LATE[:-1]),
        (CatchUpPolicy.ALL, LATE, []),
    ],
)
def test_plan_with_missed_times_alone(
    policy: CatchUpPolicy, to_fire: list[datetime], missed: list[datetime]
) -> None:
    plan = plan_due(schedule("56-58 11 * * *", catch_up=policy, cursor_time=LATE[0] - MINUTE), NOW)
    assert (list(plan.to_fire), list(plan.missed)) == (to_fire, missed)


@pytest.mark.parametrize("policy", CatchUpPolicy)
def test_plan_with_nothing_due(policy: CatchUpPolicy) -> None:
    plan = plan_due(schedule(catch_up=policy), NOW)
    assert (list(plan.to_fire), list(plan.missed)) == ([], [])


@pytest.mark.parametrize("policy", CatchUpPolicy)
def test_a_due_time_is_in_time_for_a_minute(policy: CatchUpPolicy) -> None:
    due = NOW.replace(second=0)
    line = schedule("0 12 * * *", catch_up=policy, cursor_time=NOW - HOUR)
    assert list(plan_due(line, due + MINUTE).to_fire) == [due]
    late = plan_due(line, due + MINUTE + timedelta(microseconds=1))
    assert list(late.to_fire) == ([] if policy is CatchUpPolicy.NONE else [due])
    assert list(late.missed) == ([due] if policy is CatchUpPolicy.NONE else [])


@given(policy=st.sampled_from(CatchUpPolicy), outage=st.timedeltas(timedelta(0), timedelta(days=60)))
def test_a_plan_has_each_due_time_once_and_at_most_a_hundred(
    policy: CatchUpPolicy, outage: timedelta
) -> None:
    plan = plan_due(schedule(catch_up=policy, cursor_time=NOW - outage), NOW)
    both = [*plan.missed, *plan.to_fire]
    assert both == newest_due("* * * * *", "UTC", NOW - outage, NOW)
    assert len(both) <= MAX_CAUGHT_UP


@pytest.mark.parametrize(
    ("cron", "problem"),
    [
        ("", "five fields"),
        ("* * * *", "five fields"),
        ("0 * * * * *", "five fields"),
        ("@daily", "five fields"),
        ("60 * * * *", "malformed: bad minute"),
        ("* 24 * * *", "malformed: bad hour"),
        ("* * 0 * *", "malformed: bad day-of-month"),
        ("* * * 13 *", "malformed: bad month"),
        ("* * * * 8", "malformed: bad day-of-week"),
        ("*/0 * * * *", "malformed: bad minute"),
        ("5-1 * * * *", "malformed: bad minute"),
        ("1,, * * * *", "malformed: bad minute"),
        ("-1 * * * *", "malformed: bad minute"),
        ("٣ * * * *", "malformed: bad minute"),
        ("* * * * ²L", "malformed: bad day-of-week"),
        ("* * * * MON#0", "malformed: bad day-of-week"),
        ("* * * * MON#2/2", "malformed: bad day-of-week"),
        ("* * L-3 * *", "malformed: bad day-of-month"),
        ("* * * JANUARY *", "malformed: bad month"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("0 0 31 4,6 *", "bad day-of-month"),
        ("0 0 */31 * MON#2", "is never due"),
    ],
)
def test_a_line_that_is_refused(cron: str, problem: str) -> None:
    with pytest.raises(MeshError, match=problem) as refused:
        check_due_times(cron, "UTC", NOW)
    assert refused.value.reason == "INVALID_REQUEST"


@pytest.mark.parametrize(
    "cron",
    ["*/5 * * * *", "0 9 * * mon-fri", "0 9 * jan,JUL 7", "59 23 L * *", "0 0 29 2 *", "0 0 * 2 MON#5"],
)
def test_a_line_that_is_accepted(cron: str) -> None:
    check_due_times(cron, "Europe/Berlin", NOW)


@pytest.mark.parametrize(
    "time_zone",
    [
        "../etc/passwd",
        "/etc/localtime",
        "Europe/../Europe/Berlin",
        "Europe//Berlin",
        "Europe",
        "Europe/",
        ".",
        "europe/berlin",
        "Mars/Olympus",
        " UTC",
        "UTC ",
        "Zürich",
        "zone.tab",
        "tzdata.zi",
        "__init__.py",
        "+02:00",
    ],
)
def test_a_time_zone_that_is_refused(time_zone: str) -> None:
    with pytest.raises(MeshError, match="no time zone") as refused:
        check_due_times("* * * * *", time_zone, NOW)
    assert refused.value.reason == "INVALID_REQUEST"


def test_the_etag_is_of_a_life_and_a_version() -> None:
    one = schedule()
    assert one.etag == schedule(overlap=OverlapPolicy.ALLOW).etag
    others = {schedule(version=2).etag, schedule(schedule_id="sch_2").etag}
    assert len({one.etag, *others}) == 3


def test_the_id_of_a_firing_is_of_the_schedule_and_the_occasion() -> None:
    ids = {firing_id_of_call(one, occasion) for one in ("sch_1", "sch_2") for occasion in ("a", "b")}
    assert len(ids) == 4
    assert firing_id_of_call("sch_1", "a") in ids
    elsewhere = NOW.astimezone(ZoneInfo("America/New_York"))
    assert firing_id_of_due("sch_1", NOW) == firing_id_of_due("sch_1", elsewhere), "one time has one id"
    assert firing_id_of_due("sch_1", NOW) not in ids


@pytest.mark.parametrize("name", ["localtime", "posixrules", "right/Europe/Berlin", "europe/berlin"])
def test_a_zone_that_is_not_the_same_on_every_machine_is_none(name: str) -> None:
    with pytest.raises(MeshError, match="is no time zone"):
        schedules.check_due_times("0 9 * * *", name, NOW)


def test_a_tenant_has_at_most_a_hundred() -> None:
    check_schedule_count(99)
    with pytest.raises(MeshError) as refused:
        check_schedule_count(100)
    assert refused.value.reason == "SCHEDULE_COUNT_EXCEEDED"
