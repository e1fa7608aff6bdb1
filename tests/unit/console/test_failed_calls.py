"""Failed calls as rows of models and reasons, and as bars of hours."""

from datetime import UTC, datetime, timedelta

from spawnmesh_console.domain.failed_calls import (
    FailedCalls,
    FailuresView,
    ListedFailures,
    failures_view,
)

FIRST = datetime(2026, 3, 1, 12, tzinfo=UTC)


def failed(model: str, reason: str, *counts: int) -> ListedFailures:
    return ListedFailures(FailedCalls(*counts), model=model, reason=reason)


def view_of(*by_model: ListedFailures, hours: tuple[tuple[int, int], ...] = ()) -> FailuresView:
    by_hour = [ListedFailures(FailedCalls(count), FIRST + timedelta(hours=hour)) for hour, count in hours]
    return failures_view(by_model, by_hour, FIRST)


def test_rows_are_in_words_and_the_largest_first() -> None:
    view = view_of(
        failed("acme/two", "TIMEOUT", 1, 1, 0),
        failed("acme/one", "RATE_LIMIT", 200, 150, 20),
        failed("acme/one", "NEWER_REASON", 50, 0, 0),
    )
    assert [(one.model, one.words, one.percent) for one in view.lines] == [
        ("acme/one", "too many requests", 100.0),
        ("acme/one", "newer reason", 25.0),
        ("acme/two", "no answer in time", 1.0),
    ]
    assert view.total == FailedCalls(251, 151, 20)


def test_very_many_rows_share_the_last_one() -> None:
    view = view_of(*[failed(f"acme/{number:02}", "TIMEOUT", 100 - number, 1, 1) for number in range(30)])
    assert len(view.lines) == 25
    last = view.lines[-1]
    assert (last.model, last.words, last.reason) == ("", "6 more models and reasons", "")
    assert last.calls == FailedCalls(sum(100 - number for number in range(24, 30)), 6, 6)
    assert last.percent == 100.0


def test_hours_without_a_failure_have_a_place_and_no_bar() -> None:
    view = view_of(hours=((0, 4), (22, 8), (23, 8)))
    assert [one.hour for one in view.hours] == [FIRST + timedelta(hours=number) for number in range(24)]
    assert [one.height for one in view.hours[:2]] == [50.0, 0.0]
    assert (view.hours[0].y, view.hours[1].slot_x, view.chart_width) == (50.0, 10.0, 240.0)
    assert view.highest.hour == FIRST + timedelta(hours=23)
    assert [one.calls.failure_count for one in view.used_hours] == [8, 8, 4]


def test_nothing_failed() -> None:
    view = view_of()
    assert (view.lines, view.used_hours, view.total) == ([], [], FailedCalls())
