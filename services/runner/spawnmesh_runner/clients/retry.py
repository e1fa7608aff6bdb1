"""Retry a call while its peer is unavailable for a moment."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.peers import Peer
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential
from tenacity.stop import stop_base

from spawnmesh_runner.domain.reasons import TRANSIENT, is_passing

if TYPE_CHECKING:
    from grpc.aio import UnaryUnaryMultiCallable

T = TypeVar("T")
RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

CALL_SECONDS = 10.0
# Longer than a peer needs to be replaced by another replica. A run whose peer does not answer by
# then goes back to the queue.
GIVE_UP_AFTER_SECONDS = 10.0
SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 5.0
_EXPONENTIAL = wait_random_exponential(0.1, min=SHORTEST_PAUSE_SECONDS, max=LONGEST_PAUSE_SECONDS)


async def call_with_retry(
    peer: Peer,
    method: "UnaryUnaryMultiCallable[RequestT, ResponseT]",
    request: RequestT,
    *,
    timeout_seconds: float = CALL_SECONDS,
    give_up_after_seconds: float | None = None,
) -> ResponseT:
    """Make an idempotent call, with retries as in `retry_transient`.

    `timeout_seconds` limits each attempt.
    """
    return await retry_transient(
        lambda: peer.unary(method, request, timeout_seconds=timeout_seconds),
        give_up_after_seconds=give_up_after_seconds,
    )


async def retry_transient(
    call: Callable[[], Awaitable[T]],
    transient: tuple[Reason, ...] = TRANSIENT,
    *,
    give_up_after_seconds: float | None = None,
) -> T:
    """Make an idempotent call, and repeat it while the error is transient.

    Raises the first other MeshError, or the last transient one `give_up_after_seconds` after the
    first, by default GIVE_UP_AFTER_SECONDS.
    """

    async def attempt() -> T:  # tenacity awaits only what it knows to be a coroutine function.
        return await call()

    attempts = AsyncRetrying(
        retry=retry_if_exception(lambda error: isinstance(error, MeshError) and is_passing(error, transient)),
        wait=backoff,
        stop=_StopAfterFirstFailure(give_up_after_seconds or GIVE_UP_AFTER_SECONDS),
        reraise=True,
        sleep=asyncio.sleep,
    )
    return await attempts(attempt)


def backoff(state: RetryCallState) -> float:
    """Return the pause before the next attempt: random, up to a bound that doubles.

    It is at least what the peer asked for, up to LONGEST_PAUSE_SECONDS: the lease keeps running
    meanwhile.
    """
    asked = mesh_error_of(state).retry_after_seconds or 0.0
    return max(_EXPONENTIAL(state), min(asked, LONGEST_PAUSE_SECONDS))


def mesh_error_of(state: RetryCallState) -> MeshError:
    """Return the MeshError of the last attempt, which must have failed with one."""
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, MeshError)
    return error


class _StopAfterFirstFailure(stop_base):
    """Stop before a pause that would end `after_seconds` after the first failure.

    The duration of the first attempt does not count: a model may have answered for minutes.
    """

    def __init__(self, after_seconds: float) -> None:
        self._after_seconds = after_seconds
        self._first: float | None = None

    def __call__(self, retry_state: RetryCallState) -> bool:
        failed = retry_state.outcome_timestamp or 0.0
        self._first = failed if self._first is None else self._first
        return failed + retry_state.upcoming_sleep - self._first > self._after_seconds
