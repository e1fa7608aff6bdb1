"""Cooldowns are lanes on one time line around now."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_console.domain.cooldown_lanes import CooldownTimeLine, LanePart, cooldown_time_line
from spawnmesh_console.domain.cooldowns import CooldownView, ProviderView

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def rest(model: str, start_seconds: float, until_seconds: float) -> CooldownView:
    """Return a cooldown that began and ends at these times after now."""
    start, until = (NOW + timedelta(seconds=one) for one in (start_seconds, until_seconds))
    return CooldownView("MODEL", f"acme/{model}", start, until, "RATE_LIMIT", 1, "")


def drawn(*rests: CooldownView) -> CooldownTimeLine:
    middle = len(rests) // 2
    providers = [ProviderView("acme", 1, 1, rests[:middle]), ProviderView("own", 1, 1, rests[middle:])]
    found = cooldown_time_line(providers, NOW)
    assert found is not None
    return found


def test_there_is_no_line_without_a_cooldown() -> None:
    assert cooldown_time_line([ProviderView("acme", 1, 1, ())], NOW) is None


def test_parts_before_and_after_now_meet_at_a_third() -> None:
    line = drawn(rest("one", -60, 120))
    (lane,) = line.lanes
    assert line.now_x == 33.333
    assert (lane.past, lane.coming) == (LanePart(0.0, 33.333), LanePart(33.333, 66.667))
    assert lane.words == "In cooldown from 1 min ago; it ends in 2 min"
    assert [tick.words for tick in line.ticks] == [
        "1 min ago",
        "30 s ago",
        "now",
        "in 30 s",
        "in 1 min",
        "in 1 min 30 s",
        "in 2 min",
    ]
    assert [tick.words for tick in line.ticks if not tick.is_odd] == [
        "1 min ago",
        "now",
        "in 1 min",
        "in 2 min",
    ]


def test_active_ones_come_first_and_decide_how_long_the_line_is() -> None:
    line = drawn(
        rest("old", -7200, -3600), rest("late", -10, 600), rest("ended", -280, -90), rest("one", -300, 30)
    )
    assert [lane.cooldown.target for lane in line.lanes] == [
        "acme/one",
        "acme/late",
        "acme/ended",
        "acme/old",
    ]
    one, late, ended, old = line.lanes
    assert (one.past, one.coming) == (LanePart(0.0, 33.333), LanePart(33.333, 3.334))
    assert late.coming == LanePart(33.333, 66.667)
    assert (ended.past, ended.coming, ended.is_over) == (LanePart(2.222, 21.111), None, True)
    assert (old.past, old.coming, old.words) == (None, None, "In cooldown from 2 h ago to 1 h ago")


def test_ended_ones_alone_have_more_room() -> None:
    line = drawn(rest("one", -3600, -1800))
    assert line.now_x == 66.667
    assert line.lanes[0].past == LanePart(0.0, 33.333)


def test_very_many_are_counted_and_not_drawn() -> None:
    line = drawn(*[rest(f"m{number}", -10, 60 + number) for number in range(45)])
    assert (len(line.lanes), line.hidden_count) == (40, 5)


SECONDS = st.floats(-90_000, 90_000)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=50))
def test_everything_stays_on_the_axis(times: list[tuple[float, float]]) -> None:
    line = drawn(*[rest("one", min(0.0, *pair), max(pair)) for pair in times])
    assert [tick.words for tick in line.ticks].count("now") == 1
    assert all(-0.01 <= tick.x <= 100.01 for tick in line.ticks)
    assert len(line.ticks) <= 9
    for lane in line.lanes:
        for part in (lane.past, lane.coming):
            assert part is None or (part.x >= 0 and part.width >= 0.6 and part.x + part.width <= 100.61)
