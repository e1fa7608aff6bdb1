"""When a job that failed is tried again."""

from datetime import UTC, datetime

import pytest
from procrastinate.jobs import Job
from spawnmesh_session.jobs.tasks import Backoff


def pause(attempts: int, retry: Backoff) -> int | None:
    job = Job(id=1, queue="default", lock=None, queueing_lock=None, task_name="t", attempts=attempts)
    decision = retry.get_retry_decision(exception=RuntimeError(), job=job)
    if decision is None or decision.retry_at is None:
        return None
    return round(decision.retry_at.timestamp() - datetime.now(UTC).timestamp())


@pytest.mark.parametrize(("attempts", "seconds"), [(0, 2), (3, 16), (9, 300), (59, 300), (10_000, 300)])
def test_pauses_double_and_stay_short_enough_to_be_over_soon_after_a_peer_is_back(
    attempts: int, seconds: int
) -> None:
    assert pause(attempts, Backoff()) == seconds


def test_job_with_a_bound_is_given_up_at_it() -> None:
    assert pause(4, Backoff(max_attempts=5)) == 32
    assert pause(5, Backoff(max_attempts=5)) is None
