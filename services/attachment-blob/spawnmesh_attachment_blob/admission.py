"""Who has what a replica has little of: so much at once, given to tenants in turn, and half of it at most to one of them."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is given at once, how much may wait, and for how long. `pool` and `refusal` are told to who is sent away."""

    pool: str
    refusal: str
    size: int
    waiting: int
    wait_seconds: float
    again_seconds: float

    @property
    def size_of_tenant(self) -> int:
        """What one tenant has at most: who takes all that he can leaves as much for others."""
        return max(1, self.size // 2)

    @property
    def waiting_of_tenant(self) -> int:
        """What of one tenant may wait, or the first of its calls."""
        return self.waiting // 4


@dataclass(eq=False, slots=True)
class _Waiter:
    size: int
    is_granted: bool = False
    turn: asyncio.Event = field(default_factory=asyncio.Event)


class Admission:
    """Gives to one tenant after the other, and to each in the order in which its callers came.

    Whose turn it is for something large is waited for, so that it comes; a tenant that has its half lets others pass.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._size_of_tenant = bounds.size_of_tenant
        self._held = self._waiting = 0
        self._held_of: Counter[str] = Counter()
        self._waiting_of: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[_Waiter]] = OrderedDict()

    @asynccontextmanager
    async def taken(self, tenant_id: str, size: int = 1) -> AsyncIterator[None]:
        """So much for the block; more than a tenant may have counts as that. Raises POOL_EXHAUSTED: too much waits, or this did for long."""
        size = min(size, self._size_of_tenant)
        if not self._queues and self._is_there(tenant_id, size):
            self._hold(tenant_id, size)
        else:
            await self._wait(tenant_id, size)
        try:
            yield
        finally:
            self._give_back(tenant_id, size)

    def is_wanted(self, tenant_id: str) -> bool:
        """Whether somebody waits who could have what this tenant gave back."""
        return any(other == tenant_id or self._held_of[other] < self._size_of_tenant for other in self._queues)

    async def _wait(self, tenant_id: str, size: int) -> None:
        waiter = _Waiter(size)
        self._queues.setdefault(tenant_id, deque()).append(waiter)
        self._waiting += size
        self._waiting_of[tenant_id] += size
        self._grant()
        try:
            if not waiter.is_granted:
                if self._is_too_much(tenant_id, size):
                    raise self._refused()
                async with asyncio.timeout(self._bounds.wait_seconds):
                    await waiter.turn.wait()
        except BaseException as error:
            if waiter.is_granted:
                self._give_back(tenant_id, size)
            else:
                self._queues[tenant_id].remove(waiter)
                self._leave_queue(tenant_id, size)
                self._grant()
            if isinstance(error, TimeoutError):
                raise self._refused() from None
            raise

    def _grant(self) -> None:
        while (tenant_id := self._next()) is not None:
            waiter = self._queues[tenant_id].popleft()
            self._leave_queue(tenant_id, waiter.size)
            if tenant_id in self._queues:
                self._queues.move_to_end(tenant_id)
            self._hold(tenant_id, waiter.size)
            waiter.is_granted = True
            waiter.turn.set()

    def _next(self) -> str | None:
        """The first tenant in turn that may have what it waits for; None where that is not there yet."""
        for tenant_id, queue in self._queues.items():
            size = queue[0].size
            if self._held_of[tenant_id] + size <= self._size_of_tenant:
                return tenant_id if self._held + size <= self._bounds.size else None
        return None

    def _is_there(self, tenant_id: str, size: int) -> bool:
        return self._held + size <= self._bounds.size and self._held_of[tenant_id] + size <= self._size_of_tenant

    def _is_too_much(self, tenant_id: str, size: int) -> bool:
        """Whether more waits than may, with this."""
        bounds, of_tenant = self._bounds, self._waiting_of[tenant_id]
        return self._waiting - size >= bounds.waiting or size < of_tenant > bounds.waiting_of_tenant

    def _hold(self, tenant_id: str, size: int) -> None:
        self._held += size
        self._held_of[tenant_id] += size

    def _give_back(self, tenant_id: str, size: int) -> None:
        self._held -= size
        self._held_of[tenant_id] -= size
        if not self._held_of[tenant_id]:
            del self._held_of[tenant_id]
        if self._queues:
            self._grant()

    def _leave_queue(self, tenant_id: str, size: int) -> None:
        self._waiting -= size
        self._waiting_of[tenant_id] -= size
        if not self._queues[tenant_id]:
            del self._queues[tenant_id], self._waiting_of[tenant_id]

    def _refused(self) -> MeshError:
        return MeshError(
            Reason.POOL_EXHAUSTED,
            self._bounds.refusal,
            retry_after_seconds=self._bounds.again_seconds,
            facts={"pool": self._bounds.pool},
        )
