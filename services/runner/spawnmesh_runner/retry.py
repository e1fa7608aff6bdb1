"""Calling a peer again while it is away for a moment."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.peers import Peer

from spawnmesh_runner.domain import TRANSIENT, backoff_seconds

if TYPE_CHECKING:
    from grpc.aio import UnaryUnaryMultiCallable

T = TypeVar("T")
RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

CALL_SECONDS = 10.0
# Longer than a rolling restart of a peer takes; whoever still gets no answer then has a reason to fail.
GIVE_UP_AFTER_SECONDS = 30.0


async def persistently(
    peer: Peer,
    method: "UnaryUnaryMultiCallable[RequestT, ResponseT]",
    request: RequestT,
    *,
    timeout_seconds: float = CALL_SECONDS,
) -> ResponseT:
    """Makes an idempotent call until it is answered, as `while_transient` does; `timeout_seconds` is for each try."""
    return await while_transient(lambda: peer.unary(method, request, timeout_seconds=timeout_seconds))


async def while_transient(call: Callable[[], Awaitable[T]], transient: tuple[Reason, ...] = TRANSIENT) -> T:
    """Makes an idempotent call, and makes it again while the refusal is transient.

    Raises the MeshError that is not, or the last one once GIVE_UP_AFTER_SECONDS have gone by since the first.
    """
    give_up_time: float | None = None
    attempt = 0
    while True:
        try:
            return await call()
        except MeshError as error:
            if error.reason not in transient:
                raise
            pause = backoff_seconds(attempt, jitter=jitter(), floor=error.retry_after_seconds)
            give_up_time = give_up_time or monotonic_seconds() + GIVE_UP_AFTER_SECONDS
            if monotonic_seconds() + pause > give_up_time:
                raise
        await asyncio.sleep(pause)
        attempt += 1


def jitter() -> float:
    """A number in [0, 1), drawn so that runners do not all come back at once."""
    return random.random()  # noqa: S311 - nobody gains by guessing it
