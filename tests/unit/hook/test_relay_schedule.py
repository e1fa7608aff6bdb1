"""When the outbox relay retries, and how tenants share its capacity."""

from datetime import timedelta

import pytest
from spawnmesh_hook.domain.relay_schedule import MAX_ATTEMPT_COUNT, backoff_after, free_capacity


@pytest.mark.parametrize(
    ("concurrency", "in_flight", "free", "full"),
    [
        (8, {}, 4, []),
        (8, {"a": 1}, 3, []),
        (8, {"a": 3, "b": 1}, 1, []),
        (8, {"a": 4}, 4, ["a"]),
        (8, {"a": 4, "b": 3}, 1, ["a"]),
        (8, {"a": 4, "b": 4}, 0, ["a", "b"]),
        (8, {"a": 2, "b": 2, "c": 2}, 2, []),
        (1, {}, 1, []),
        (1, {"a": 1}, 0, ["a"]),
        (2, {"a": 1}, 1, ["a"]),
    ],
)
def test_tenant_may_use_half_of_the_capacity(
    concurrency: int, in_flight: dict[str, int], free: int, full: list[str]
) -> None:
    assert free_capacity(concurrency, in_flight) == (free, full)


@pytest.mark.parametrize(
    ("attempt_count", "delay"),
    [
        (1, timedelta(seconds=2)),
        (2, timedelta(seconds=4)),
        (10, timedelta(seconds=1024)),
        (11, timedelta(minutes=30)),
        (MAX_ATTEMPT_COUNT - 1, timedelta(minutes=30)),
        (MAX_ATTEMPT_COUNT, None),
    ],
)
def test_backoff_doubles_up_to_half_an_hour_and_ends(attempt_count: int, delay: timedelta | None) -> None:
    assert backoff_after(attempt_count) == delay


def test_an_observer_has_about_a_day_and_is_called_soon_after_a_short_absence() -> None:
    pauses = [backoff for count in range(1, MAX_ATTEMPT_COUNT) if (backoff := backoff_after(count))]
    times = [sum(pauses[:count], timedelta()) for count in range(1, len(pauses) + 1)]
    assert timedelta(hours=23) < times[-1] < timedelta(hours=25)
    back = timedelta(seconds=90)
    assert min(time for time in times if time > back) < 2 * back
