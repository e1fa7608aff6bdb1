"""Retry a call while its peer is unavailable for a moment."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.peers import Peer

from spawnmesh_runner.domain.backoff import backoff_seconds
from spawnmesh_runner.domain.reasons import TRANSIENT

if TYPE_CHECKING:
    from grpc.aio import UnaryUnaryMultiCallable

T = TypeVar("T")
RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

CALL_SECONDS = 10.0
# Longer than a rolling restart of a peer takes. A call without an answer by then may fail.
GIVE_UP_AFTER_SECONDS = 30.0


async def call_with_retry(
    peer: Peer,
    method: "UnaryUnaryMultiCallable[RequestT, ResponseT]",
    request: RequestT,
    *,
    timeout_seconds: float = CALL_SECONDS,
) -> ResponseT:
    """Make an idempotent call, with retries as in `retry_transient`.

    `timeout_seconds` limits each attempt.
    """
    return await retry_transient(lambda: peer.unary(method, request, timeout_seconds=timeout_seconds))


async def retry_transient(call: Callable[[], Awaitable[T]], transient: tuple[Reason, ...] = TRANSIENT) -> T:
    """Make an idempotent call, and repeat it while the error is transient.

    Raises the first other MeshError, or the last transient one GIVE_UP_AFTER_SECONDS after the
    first.
    """
    give_up_time: float | None = None
    attempt = 0
    while True:
        try:
            return await call()
        except MeshError as error:
            if error.reason not in transient:
                raise
            pause = backoff_seconds(attempt, jitter=random_jitter(), floor=error.retry_after_seconds)
            give_up_time = give_up_time or monotonic_seconds() + GIVE_UP_AFTER_SECONDS
            if monotonic_seconds() + pause > give_up_time:
                raise
        await asyncio.sleep(pause)
        attempt += 1


def random_jitter() -> float:
    """Return a number in [0, 1), so that runners do not all retry at once."""
    return random.random()  # noqa: S311 - not a secret
