"""Schedules in words, and the form that describes one."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_client import schedule_views
from spawnmesh_console.domain.schedules import (
    CATCH_UPS,
    OUTCOMES,
    OVERLAPS,
    SentSchedule,
    WrongSchedule,
    cron_words,
    local_time,
    outcome_state,
    schedule_state,
)

SENT = SentSchedule("nightly", "0 9 * * 1-5", "Europe/Berlin", "Sum up.", "clerk", "REPLACE", "LATEST")


def test_the_console_knows_all_policies_and_outcomes() -> None:
    assert {*OVERLAPS} == {*schedule_views.OverlapPolicy} - {"UNKNOWN"}
    assert {*CATCH_UPS} == {*schedule_views.CatchUpPolicy} - {"UNKNOWN"}
    assert {*OUTCOMES} == {*schedule_views.FiringOutcome} - {"UNKNOWN"}


def test_each_outcome_has_a_word_and_a_shape_of_its_own() -> None:
    shown = [outcome_state(one) for one in (*OUTCOMES, "UNKNOWN")]
    assert [one.word for one in shown] == ["spawned", "skipped", "missed", "failed", "unknown"]
    assert len({one.icon for one in shown}) == len(shown)


def test_a_paused_schedule_differs_in_its_shape() -> None:
    assert schedule_state(is_paused=True).word == "paused"
    assert schedule_state(is_paused=True).icon != schedule_state(is_paused=False).icon


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("0 9 * * 1-5", "at 09:00 on Monday to Friday"),
        ("*/5 * * * *", "every fifth minute of every hour"),
        ("* * * * *", "every minute"),
        ("15 3 * * *", "at 03:15 every day"),
        ("0 0 L * *", "at 00:00 on the last day of every month"),
        ("0 0 21,22,23,31 * *", "at 00:00 on the 21st, the 22nd, the 23rd, and the 31st day of month"),
        ("0 0 11,12,13 * *", "at 00:00 on the 11th, the 12th, and the 13th day of month"),
        ("*/10 9-17 * * MON-FRI", "every 10th minute from 09:00 to 17:59 on Monday to Friday"),
    ],
)
def test_a_simple_line_is_told_in_words(cron: str, words: str) -> None:
    assert cron_words(cron) == words


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "0 9 * *",
        "0 0 9 * * 1-5",
        "@daily",
        "0 25 * * *",
        "<b> * * * *",
        "0 9 1,15 * MON",
        "1,3,5,7,9,11,13,15,17,19 1,3,5,7,9,11,13,15,17,19 * * *",
    ],
)
def test_another_line_has_no_words(cron: str) -> None:
    assert cron_words(cron) == ""


@given(st.text(alphabet="0123456789*/-,#LW MONJAN@<", max_size=40))
def test_no_line_breaks_a_page(cron: str) -> None:
    assert "<" not in cron_words(cron)


def test_a_time_is_that_of_the_clocks_of_the_zone() -> None:
    winter, summer = datetime(2026, 12, 7, 8, tzinfo=UTC), datetime(2026, 7, 6, 7, tzinfo=UTC)
    assert local_time(winter, "Europe/Berlin") == "Mon 2026-12-07 09:00 CET"
    assert local_time(summer, "Europe/Berlin") == "Mon 2026-07-06 09:00 CEST"
    assert local_time(winter, "") == "Mon 2026-12-07 08:00 UTC"


@pytest.mark.parametrize(
    "zone", ["No/Zone", "../../etc/passwd", "/etc/passwd", "Europe", "a\0b", "\ud800", "x" * 64]
)
def test_a_zone_that_is_not_known_is_utc(zone: str) -> None:
    assert local_time(datetime(2026, 12, 7, 8, tzinfo=UTC), zone) == "Mon 2026-12-07 08:00 UTC"


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"name": ""}, "a name"),
        ({"name": "-a"}, "a name"),
        ({"name": "A"}, "a name"),
        ({"name": "a\n"}, "a name"),
        ({"name": "a" * 64}, "a name"),
        ({"cron": ""}, "a cron line"),
        ({"cron": "@daily"}, "a cron line"),
        ({"cron": "0 0 9 * * 1-5"}, "a cron line"),
        ({"cron": "60 * * * *"}, "a cron line"),
        ({"cron": ",".join(["1"] * 200) + " * * * *"}, "a cron line"),
        ({"cron": "\ud800 * * * *"}, "a cron line"),
        ({"time_zone": "x" * 65}, "a time zone"),
        ({"task": ""}, "no task"),
        ({"task": "ä" * 32_769}, "65,536 bytes"),
        ({"task": "\ud800" * 32_769}, "65,536 bytes"),
        ({"overlap": "QUEUE"}, "policies"),
        ({"catch_up": "unknown"}, "policies"),
    ],
)
def test_what_no_schedule_can_have_is_refused(wrong: dict[str, str], problem: str) -> None:
    SENT.check()
    with pytest.raises(WrongSchedule, match=problem):
        replace(SENT, **wrong).check()


def test_the_fields_of_a_schedule_stand_for_it() -> None:
    shown = SentSchedule.for_schedule(
        SENT.name, " 0  9 * * 1-5 ", SENT.time_zone, " Sum up.\n", SENT.agent, SENT.overlap, SENT.catch_up
    )
    assert shown == SENT
    empty = SentSchedule.for_schedule("nightly", "0 9 * * *", "", "Sum up.", "default", "", "")
    assert (empty.time_zone, empty.agent, empty.overlap, empty.catch_up) == ("UTC", "", "SKIP", "NONE")


def test_only_what_differs_is_changed() -> None:
    assert SENT.differs_from(SENT) == frozenset()
    assert SENT.differs_from(replace(SENT, name="other")) == frozenset()
    other = replace(SENT, cron="0 10 * * *", agent="")
    assert other.differs_from(SENT) == {"cron", "agent"}
    assert replace(SENT, task="Else.", overlap="SKIP").differs_from(SENT) == {"task", "overlap"}


def test_a_task_with_unseen_characters_is_unchanged_if_it_is_sent_as_it_is_shown() -> None:
    stored = "Sum up\u202e.\r\nThen stop."
    shown = SentSchedule.for_schedule("a", "0 9 * * *", "UTC", stored, "", "SKIP", "NONE")
    assert shown.task == "Sum up⟨U+202E⟩.\nThen stop."
    sent = SentSchedule.for_schedule(
        "a", "0 9 * * *", "UTC", shown.task.replace("\n", "\r\n"), "", "SKIP", "NONE"
    )
    assert sent.differs_from(shown) == frozenset()
