"""How long a service that went silent is asked again."""

import pytest
from spawnmesh_client.patience import Patience
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.reasons import Reason


class Time:
    def __init__(self):
        self.now = 0.0
        self.slept = []

    async def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def patience(self, seconds):
        return Patience(seconds, monotonic=lambda: self.now, sleep=self.sleep)


async def tries(time, patience, error):
    """How often it was tried until the error came out."""
    for count in range(1, 100):
        patience.calling()
        try:
            await patience.after(error)
        except MeshError:
            return count
    pytest.fail("never gave up")


async def test_a_silent_service_is_asked_until_the_time_is_over():
    time = Time()

    assert await tries(time, time.patience(10), unavailable("session", retry_after_seconds=2)) == 6
    assert time.slept == [2] * 5


async def test_an_answer_between_starts_the_time_anew():
    time = Time()
    patience = time.patience(3)
    await patience.after(unavailable("session"))
    await patience.after(unavailable("session"))

    patience.heard()

    assert await tries(time, patience, unavailable("session")) == 4


async def test_a_call_that_lasted_counts_as_an_answer():
    time = Time()
    patience = time.patience(3)
    for _ in range(5):
        patience.calling()
        time.now += 60
        await patience.after(unavailable("session"))

    assert time.slept == [1] * 5


async def test_other_refusals_are_not_outlasted():
    time = Time()

    assert await tries(time, time.patience(60), MeshError(Reason.NOT_FOUND, "gone")) == 1
    assert time.slept == []


async def test_a_token_that_ran_out_while_it_was_used_is_followed_by_another():
    time = Time()
    patience = time.patience(3)
    patience.calling()
    time.now += 300
    await patience.after(MeshError(Reason.TOKEN_EXPIRED, "over"))
    assert time.slept == []


async def test_a_token_that_is_over_when_it_is_used_is_refused():
    time = Time()
    assert await tries(time, time.patience(60), MeshError(Reason.TOKEN_EXPIRED, "over")) == 1
