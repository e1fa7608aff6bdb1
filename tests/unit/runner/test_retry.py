"""Retries of calls to a peer that is unavailable for a moment."""

from types import SimpleNamespace

import pytest
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.reasons import Reason
from spawnmesh_runner.clients import retry
from spawnmesh_runner.clients.retry import backoff, retry_transient
from tenacity import AsyncRetrying, RetryCallState


def state_after(attempt: int, floor: float | None) -> RetryCallState:
    """Return the state after this many attempts failed."""
    state = RetryCallState(AsyncRetrying(), None, (), {})
    error = unavailable("peer", retry_after_seconds=floor)
    state.attempt_number = attempt
    state.set_exception((MeshError, error, None))
    return state


@pytest.mark.parametrize("attempt", [1, 2, 5, 10_000])
@pytest.mark.parametrize("floor", [None, 0.0, 0.3, 5.0, 1000.0])
def test_backoff_is_bounded_and_not_below_the_floor(attempt: int, floor: float | None) -> None:
    for _ in range(20):
        pause = backoff(state_after(attempt, floor))
        assert max(0.05, min(floor or 0.0, 5.0)) <= pause <= 5.0


def test_the_bound_of_the_backoff_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda _low, high: high)
    assert [backoff(state_after(attempt, None)) for attempt in (1, 2, 3, 20)] == [0.1, 0.2, 0.4, 5.0]


class Peer:
    """Fails `failure_count` times; every pause and the first call last as long as they say."""

    def __init__(self, failure_count: int, reason: Reason = Reason.DEPENDENCY_UNAVAILABLE) -> None:
        self.left, self.reason, self.now, self.call_count = failure_count, reason, 0.0, 0

    async def call(self) -> str:
        self.call_count += 1
        if self.call_count == 1:
            self.now += 600.0
        if self.left:
            self.left -= 1
            raise MeshError(self.reason, "not now", retry_after_seconds=5.0)
        return "answer"

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def peer_of(monkeypatch: pytest.MonkeyPatch):
    def make(failure_count: int, reason: Reason = Reason.DEPENDENCY_UNAVAILABLE) -> Peer:
        peer = Peer(failure_count, reason)
        monkeypatch.setattr(retry, "asyncio", SimpleNamespace(sleep=peer.sleep))
        monkeypatch.setattr("tenacity.time", SimpleNamespace(monotonic=lambda: peer.now))
        return peer

    return make


async def test_a_transient_error_is_retried_also_after_a_long_first_call(peer_of) -> None:
    peer = peer_of(2)
    assert await retry_transient(lambda: peer.call()) == "answer"


async def test_the_last_transient_error_is_raised_ten_seconds_after_the_first(peer_of) -> None:
    peer = peer_of(1000)
    with pytest.raises(MeshError, match="not now"):
        await retry_transient(peer.call)
    assert (peer.call_count, peer.now) == (3, 610.0)


async def test_another_error_is_raised_at_once(peer_of) -> None:
    peer = peer_of(1, Reason.NOT_FOUND)
    with pytest.raises(MeshError, match="not now"):
        await retry_transient(peer.call)
    assert peer.call_count == 1
