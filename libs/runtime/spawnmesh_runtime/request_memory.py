"""Bound the memory of the requests that a process works on, or that arrive slowly.

The places of a tenant count its calls, whatever their size. A call of a model holds its request for
minutes, and gRPC keeps what has arrived of a message until it is whole. So a tenant with hundreds
of places could fill the memory of a process.
"""

import asyncio
from collections import Counter
from contextlib import AbstractAsyncContextManager

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy

SMALL_BYTES = 64 * 1024
"""Requests up to this size need not be counted: the places of their tenants bound them."""

# Shorter than the deadlines of most calls, so that the refusal says why.
_WAIT_SECONDS = 5.0
_RETRY_SECONDS = 1.0
# A request that takes longer to arrive is a slow one. Their numbers are for messages of the largest
# size, in the smallest memory of a pod.
_SLOW_SECONDS = 5.0
# If the process itself was held up for so long, the request may have arrived meanwhile.
_HELD_UP_SECONDS = 0.5
_MAX_SLOW = 16
_MAX_SLOW_OF_TENANT = 8


class RequestMemory:
    """Bounds the bytes of the large requests that are being served. Tenants take turns.

    A tenant has at most half of them. What waits is in memory as well, so half as many bytes may
    wait, and calls beyond that are refused. `slow` bounds the requests that arrive slowly.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.slow = SlowRequests()
        self._limiter = FairLimiter(
            LimiterPolicy(
                "request bytes",
                "this replica works on as many bytes of requests as it may; call again later",
                capacity_bytes,
                max_waiting=capacity_bytes // 2,
                wait_seconds=_WAIT_SECONDS,
            )
        )

    def hold(self, tenant_id: str, size_bytes: int) -> AbstractAsyncContextManager[None]:
        """Count a request of the tenant that was read, until the block ends.

        Raises MeshError POOL_EXHAUSTED if too many bytes wait, or after five seconds.
        """
        return self._limiter.hold(tenant_id, size_bytes)


class SlowRequests:
    """Bounds the number of the requests that arrive slowly, of a tenant and of all."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def watch(self, tenant_id: str, limit: asyncio.Timeout) -> "_Arrival":
        """Watch a request arrive in the block, whose time ends at `limit`.

        If it arrives slowly and there are too many such requests, the time ends then. Raises
        MeshError POOL_EXHAUSTED in place of the TimeoutError.
        """
        return _Arrival(self._counts, tenant_id, limit)


class _Arrival:
    """A request that arrives. `counts` are the slow ones by tenant."""

    def __init__(self, counts: Counter[str], tenant_id: str, limit: asyncio.Timeout) -> None:
        self._counts = counts
        self._tenant_id = tenant_id
        self._limit = limit
        self._is_counted = self._is_refused = False

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_SLOW_SECONDS, self._is_slow)

    def _is_slow(self) -> None:
        if self._loop.time() - self._timer.when() > _HELD_UP_SECONDS:
            self._timer = self._loop.call_later(_SLOW_SECONDS, self._is_slow)
        elif self._counts[self._tenant_id] < _MAX_SLOW_OF_TENANT and self._counts.total() < _MAX_SLOW:
            self._counts[self._tenant_id] += 1
            self._is_counted = True
        else:
            self._is_refused = True
            self._limit.reschedule(self._loop.time())

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        self._timer.cancel()
        if self._is_counted:
            self._counts[self._tenant_id] -= 1
            if not self._counts[self._tenant_id]:
                del self._counts[self._tenant_id]
        if self._is_refused and kind is asyncio.CancelledError:
            raise _too_many_slow()


def _too_many_slow() -> MeshError:
    return MeshError(
        Reason.POOL_EXHAUSTED,
        f"the request did not arrive within {_SLOW_SECONDS:g} s, nor did too many others; call again later",
        retry_after_seconds=_RETRY_SECONDS,
        facts={"pool": "slow requests"},
    )
