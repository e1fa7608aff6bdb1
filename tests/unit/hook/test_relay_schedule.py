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
