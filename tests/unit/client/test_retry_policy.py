"""Retries of calls to a silent service."""

import pytest
from spawnmesh_client.retry_policy import RetryPolicy
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.reasons import Reason


class Time:
    def __init__(self):
        self.now = 0.0
        self.slept = []

    async def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def retry(self, seconds):
        return RetryPolicy(seconds, monotonic=lambda: self.now, sleep=self.sleep)


async def tries(time, retry, error):
    """Count the attempts until the error is raised."""
    for count in range(1, 100):
        retry.begin_attempt()
        try:
            await retry.wait_before_next(error)
        except MeshError:
            return count
    pytest.fail("never gave up")


async def test_a_silent_service_is_asked_until_the_time_is_over():
    time = Time()

    assert await tries(time, time.retry(10), unavailable("session", retry_after_seconds=2)) == 6
    assert time.slept == [2] * 5


async def test_an_answer_between_starts_the_time_anew():
    time = Time()
    retry = time.retry(3)
    await retry.wait_before_next(unavailable("session"))
    await retry.wait_before_next(unavailable("session"))

    retry.record_answer()

    assert await tries(time, retry, unavailable("session")) == 4


async def test_a_call_that_lasted_counts_as_an_answer():
    time = Time()
    retry = time.retry(3)
    for _ in range(5):
        retry.begin_attempt()
        time.now += 60
        await retry.wait_before_next(unavailable("session"))

    assert time.slept == [1] * 5


async def test_a_refused_rate_is_waited_for_as_long_as_it_asks() -> None:
    time = Time()
    limited = MeshError(Reason.RATE_LIMITED, "too many calls", retry_after_seconds=0.25)

    assert await tries(time, time.retry(1), limited) == 5
    assert time.slept == [0.25] * 4


async def test_other_refusals_are_not_outlasted():
    time = Time()

    assert await tries(time, time.retry(60), MeshError(Reason.NOT_FOUND, "gone")) == 1
    assert time.slept == []


async def test_a_token_that_ran_out_while_it_was_used_is_followed_by_another():
    time = Time()
    retry = time.retry(3)
    retry.begin_attempt()
    time.now += 300
    await retry.wait_before_next(MeshError(Reason.TOKEN_EXPIRED, "over"))
    assert time.slept == []


async def test_a_token_that_is_over_when_it_is_used_is_refused():
    time = Time()
    assert await tries(time, time.retry(60), MeshError(Reason.TOKEN_EXPIRED, "over")) == 1
