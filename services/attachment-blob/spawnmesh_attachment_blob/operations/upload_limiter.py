"""Limits the uploads that a replica receives at the same time."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy

# Longer than a sender may be silent, so that a waiter gets the permit of a silent sender.
_WAIT_SECONDS = 45.0
_RETRY_SECONDS = 5.0
_TURN_RETRY_SECONDS = 1.0
# With less, streams would begin and end over and over.
_TURN_SECONDS = 10.0
# Each queued stream holds a chunk of up to 2 MiB.
_QUEUED_STREAMS = 32
_FIRST_CHUNKS = 16
_QUEUED_FIRST_CHUNKS = 4096
IsTurnOver = Callable[[], bool]
_REFUSAL = "this replica receives as many uploads as it may; call again later"


class UploadLimiter:
    """Limits streams and their first chunks, with a FairLimiter for each.

    No stream keeps its permit for the length of a large file while others wait.
    """

    def __init__(self, max_streams: int) -> None:
        self._first_chunks = FairLimiter(
            LimiterPolicy(
                "uploads",
                _REFUSAL,
                _FIRST_CHUNKS,
                max_waiting=_QUEUED_FIRST_CHUNKS,
                wait_seconds=_WAIT_SECONDS,
                retry_after_seconds=_RETRY_SECONDS,
            )
        )
        self._streams = FairLimiter(
            LimiterPolicy(
                "uploads",
                _REFUSAL,
                max_streams,
                max_waiting=_QUEUED_STREAMS,
                wait_seconds=_WAIT_SECONDS,
                retry_after_seconds=_RETRY_SECONDS,
            )
        )

    def acquire_first_chunk(self, tenant_id: str) -> AbstractAsyncContextManager[None]:
        """Hold a permit to read the first message behind the spec.

        Few streams read it at the same time. The bytes of the others stay with their senders.
        """
        return self._first_chunks.hold(tenant_id)

    @asynccontextmanager
    async def acquire_stream(self, tenant_id: str) -> AsyncIterator[IsTurnOver]:
        """Hold a permit to receive a stream. Yield a function that says whether the turn is over.

        It is over after 10 seconds if another stream could use the permit. Raises POOL_EXHAUSTED
        after a wait of 45 seconds.
        """
        async with self._streams.hold(tenant_id):
            end = monotonic_seconds() + _TURN_SECONDS
            yield lambda: monotonic_seconds() >= end and self._streams.is_contended(tenant_id)


def turn_over() -> MeshError:
    """Build the error for a stream whose turn is over. What it sent is durable."""
    return MeshError(
        Reason.POOL_EXHAUSTED,
        "other uploads wait for this stream's permit; resume with another stream at the durable offset",
        retry_after_seconds=_TURN_RETRY_SECONDS,
        facts={"pool": "uploads"},
    )
