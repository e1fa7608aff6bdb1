"""A limiter for a scarce resource of a process, shared fairly between tenants."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason


@dataclass(frozen=True, slots=True)
class LimiterPolicy:
    """The limits of a FairLimiter.

    Sizes are in one unit of the caller's choice: calls, bytes, threads.

    - `capacity` is the most in flight, and `tenant_capacity` the most of one tenant. The default is
      half of the capacity, and at least 1: a tenant that takes all it may have leaves as much for
      others.
    - `max_waiting` is the most that may wait, and a quarter of it the most of one tenant, except
      for the tenant's first waiter. None sets no limit.
    - `wait_seconds` is the longest wait. None sets no limit.
    - `pool` and `message` describe the refusal; `retry_after_seconds` is its RetryInfo.
    """

    pool: str
    message: str
    capacity: int
    tenant_capacity: int | None = None
    max_waiting: int | None = None
    wait_seconds: float | None = None
    retry_after_seconds: float = 1.0


@dataclass(eq=False, slots=True)
class _Waiter:
    size: int
    is_granted: bool = False
    granted: asyncio.Event = field(default_factory=asyncio.Event)


class FairLimiter:
    """Bounds what is in flight and grants it to tenants in turn, first in first out
    within a tenant.

    A tenant that has its share lets the others pass. The next tenant in turn is not passed over if
    it waits for more than is free: a large request is not starved by small ones.

    The limiter belongs to one event loop. If `share_of` is given, it returns the most of a tenant,
    in place of the policy. It may return another number at any time.
    """

    def __init__(self, policy: LimiterPolicy, share_of: Callable[[str], int] | None = None) -> None:
        self._policy = policy
        share = policy.tenant_capacity
        same_share = max(1, policy.capacity // 2) if share is None else share
        self._share_of = share_of or (lambda _tenant_id: same_share)
        self._in_flight = self._waiting = 0
        self._in_flight_of: Counter[str] = Counter()
        self._waiting_of: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[_Waiter]] = OrderedDict()

    @property
    def in_flight(self) -> int:
        """The total size that is granted now."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """The total size that waits now."""
        return self._waiting

    @asynccontextmanager
    async def hold(self, tenant_id: str = "", size: int = 1) -> AsyncIterator[None]:
        """Hold `size` of the capacity for the block, and wait for it if necessary.

        A size above the share of a tenant counts as that share. Use one tenant id for all callers
        to limit without tenants. Raises MeshError POOL_EXHAUSTED if too much waits already, or
        after `wait_seconds`.
        """
        size = min(size, self._share_of(tenant_id))
        if not self._queues and self._fits(tenant_id, size):
            self._take(tenant_id, size)
        else:
            await self._wait(tenant_id, size)
        try:
            yield
        finally:
            self._release(tenant_id, size)

    def is_contended(self, tenant_id: str) -> bool:
        """Return whether a waiter could use what this tenant holds.

        The holder of a long task can ask this, and release its capacity early.
        """
        return any(
            other == tenant_id or self._in_flight_of[other] < self._share_of(other) for other in self._queues
        )

    async def _wait(self, tenant_id: str, size: int) -> None:
        waiter = _Waiter(size)
        self._queues.setdefault(tenant_id, deque()).append(waiter)
        self._waiting += size
        self._waiting_of[tenant_id] += size
        self._grant()
        try:
            if not waiter.is_granted:
                if self._exceeds_waiting(tenant_id, size):
                    raise self._refusal()
                async with asyncio.timeout(self._policy.wait_seconds):
                    await waiter.granted.wait()
        except BaseException as error:
            if waiter.is_granted:
                self._release(tenant_id, size)
            else:
                self._queues[tenant_id].remove(waiter)
                self._leave_queue(tenant_id, size)
                self._grant()
            if isinstance(error, TimeoutError):
                raise self._refusal() from None
            raise

    def _grant(self) -> None:
        while (tenant_id := self._next_tenant()) is not None:
            waiter = self._queues[tenant_id].popleft()
            self._leave_queue(tenant_id, waiter.size)
            if tenant_id in self._queues:
                self._queues.move_to_end(tenant_id)
            self._take(tenant_id, waiter.size)
            waiter.is_granted = True
            waiter.granted.set()

    def _next_tenant(self) -> str | None:
        """Return the first tenant in turn that is below its share; None if its size is
        not free yet.
        """
        for tenant_id, queue in self._queues.items():
            size = queue[0].size
            if self._in_flight_of[tenant_id] + size <= self._share_of(tenant_id):
                return tenant_id if self._in_flight + size <= self._policy.capacity else None
        return None

    def _fits(self, tenant_id: str, size: int) -> bool:
        return self._in_flight + size <= self._policy.capacity and self._in_flight_of[
            tenant_id
        ] + size <= self._share_of(tenant_id)

    def _exceeds_waiting(self, tenant_id: str, size: int) -> bool:
        """Return whether too much waits, including this size."""
        limit = self._policy.max_waiting
        if limit is None:
            return False
        of_tenant = self._waiting_of[tenant_id]
        is_first = of_tenant == size
        return self._waiting - size >= limit or (not is_first and of_tenant > limit // 4)

    def _take(self, tenant_id: str, size: int) -> None:
        self._in_flight += size
        self._in_flight_of[tenant_id] += size

    def _release(self, tenant_id: str, size: int) -> None:
        self._in_flight -= size
        self._in_flight_of[tenant_id] -= size
        if not self._in_flight_of[tenant_id]:
            del self._in_flight_of[tenant_id]
        if self._queues:
            self._grant()

    def _leave_queue(self, tenant_id: str, size: int) -> None:
        self._waiting -= size
        self._waiting_of[tenant_id] -= size
        if not self._queues[tenant_id]:
            del self._queues[tenant_id], self._waiting_of[tenant_id]

    def _refusal(self) -> MeshError:
        return MeshError(
            Reason.POOL_EXHAUSTED,
            self._policy.message,
            retry_after_seconds=self._policy.retry_after_seconds,
            facts={"pool": self._policy.pool},
        )
