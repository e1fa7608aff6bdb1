"""The fair limiter bounds what is in flight, shares it between tenants and refuses with
a reason.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy


def limiter(capacity: int, **policy: Any) -> FairLimiter:
    return FairLimiter(LimiterPolicy("uploads", "too many uploads; call again later", capacity, **policy))


class Holder:
    """A task that holds capacity until it is released."""

    def __init__(self, limiter: FairLimiter, tenant: str, size: int, granted: list[str]) -> None:
        self._done = asyncio.Event()
        self.is_granted = False

        async def hold() -> None:
            async with limiter.hold(tenant, size):
                self.is_granted = True
                granted.append(tenant)
                await self._done.wait()

        self.task = asyncio.create_task(hold())

    async def release(self) -> None:
        self._done.set()
        await self.task
        await settle()


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(10):
        await asyncio.sleep(0)


Start = Callable[..., Any]


@pytest.fixture
def granted() -> list[str]:
    """The tenants in the order in which they were granted."""
    return []


@pytest.fixture
async def start(granted: list[str]) -> Any:
    holders: list[Holder] = []

    async def begin(limiter: FairLimiter, tenant: str, size: int = 1) -> Holder:
        holder = Holder(limiter, tenant, size, granted)
        holders.append(holder)
        await settle()
        return holder

    yield begin
    for holder in holders:
        holder.task.cancel()
    await asyncio.gather(*(holder.task for holder in holders), return_exceptions=True)


async def test_at_most_the_capacity_is_in_flight(start: Start) -> None:
    places = limiter(2, tenant_capacity=2)
    first, second, third = [await start(places, "a") for _ in range(3)]
    assert (first.is_granted, second.is_granted, third.is_granted) == (True, True, False)
    assert (places.in_flight, places.waiting) == (2, 1)
    await first.release()
    assert third.is_granted


async def test_a_tenant_gets_half_of_the_capacity_by_default(start: Start) -> None:
    places = limiter(4)
    mine = [await start(places, "a") for _ in range(3)]
    other = await start(places, "b")
    assert [one.is_granted for one in mine] == [True, True, False]
    assert other.is_granted, "a waiting tenant that has its share lets others pass"


async def test_tenants_are_granted_in_turn(start: Start, granted: list[str]) -> None:
    places = limiter(1)
    first = await start(places, "a")
    waiting = [await start(places, tenant) for tenant in ("a", "a", "b", "c")]
    await first.release()
    for _ in range(3):
        await next(one for one in waiting if one.is_granted and not one.task.done()).release()
    assert granted == ["a", "a", "b", "c", "a"]


async def test_waiters_of_a_tenant_are_granted_in_their_order(start: Start) -> None:
    places = limiter(1)
    first, second, third = [await start(places, "a") for _ in range(3)]
    await first.release()
    assert (second.is_granted, third.is_granted) == (True, False)


async def test_a_large_request_is_not_starved_by_small_ones(start: Start) -> None:
    memory = limiter(10, tenant_capacity=10)
    small = await start(memory, "a", 4)
    large = await start(memory, "b", 8)
    late = await start(memory, "c", 4)
    assert (large.is_granted, late.is_granted) == (False, False)
    await small.release()
    assert (large.is_granted, late.is_granted) == (True, False)


@pytest.mark.parametrize(("tenant_capacity", "counted"), [(None, 5), (10, 10), (1, 1)])
async def test_a_size_above_the_share_counts_as_the_share(
    start: Start, tenant_capacity: int | None, counted: int
) -> None:
    memory = limiter(10, tenant_capacity=tenant_capacity)
    assert (await start(memory, "a", 99)).is_granted
    assert memory.in_flight == counted


async def test_too_much_waiting_is_refused_at_once(start: Start) -> None:
    places = limiter(1, max_waiting=2, retry_after_seconds=5.0)
    await start(places, "a")
    for tenant in ("b", "c"):
        await start(places, tenant)
    with pytest.raises(MeshError) as caught:
        async with places.hold("d"):
            pass
    assert (caught.value.reason, caught.value.retry_after_seconds) == (Reason.POOL_EXHAUSTED, 5.0)
    assert caught.value.facts == {"pool": "uploads"}
    assert places.waiting == 2


async def test_one_tenant_fills_a_quarter_of_the_queue(start: Start) -> None:
    places = limiter(1, max_waiting=8)
    await start(places, "a")
    for _ in range(2):
        await start(places, "b")
    with pytest.raises(MeshError):
        async with places.hold("b"):
            pass
    assert not (await start(places, "c")).task.done(), "others may still wait"


async def test_the_first_waiter_of_a_tenant_may_be_larger_than_the_quarter(start: Start) -> None:
    memory = limiter(100, tenant_capacity=100, max_waiting=8)
    first = await start(memory, "a", 100)
    waiter = await start(memory, "b", 50)
    await first.release()
    assert waiter.is_granted


async def test_waiting_is_bounded(start: Start) -> None:
    places = limiter(1, wait_seconds=0.01)
    holder = await start(places, "a")
    with pytest.raises(MeshError) as caught:
        async with places.hold("b"):
            pass
    assert caught.value.reason is Reason.POOL_EXHAUSTED
    assert places.waiting == 0
    await holder.release()
    assert places.in_flight == 0


async def test_a_cancelled_waiter_leaves_the_queue_and_lets_the_next_one_in(start: Start) -> None:
    memory = limiter(10, tenant_capacity=10)
    await start(memory, "a", 6)
    large = await start(memory, "b", 8)
    small = await start(memory, "c", 4)
    large.task.cancel()
    await settle()
    assert small.is_granted
    assert (memory.in_flight, memory.waiting) == (10, 0)


async def test_a_waiter_that_is_cancelled_as_it_is_granted_returns_the_capacity(start: Start) -> None:
    places = limiter(1)
    first = await start(places, "a")
    second = await start(places, "b")
    third = await start(places, "c")
    first.task.cancel()
    while not second.is_granted and places.waiting == 2:
        await asyncio.sleep(0)
    second.task.cancel()
    await settle()
    assert third.is_granted
    assert places.in_flight == 1


async def test_an_error_in_the_block_releases_the_capacity() -> None:
    places = limiter(1)
    with pytest.raises(OSError, match="gone"):
        async with places.hold("a"):
            raise OSError("gone")
    assert places.in_flight == 0


async def test_contention_counts_only_waiters_that_could_use_the_capacity(start: Start) -> None:
    places = limiter(2)
    await start(places, "a")
    await start(places, "b")
    assert not places.is_contended("a")
    await start(places, "b")
    assert places.is_contended("b")
    assert not places.is_contended("a"), "the waiter has its share already"
    await start(places, "c")
    assert places.is_contended("a")


async def test_one_tenant_id_limits_without_tenants(start: Start) -> None:
    connections = limiter(2, tenant_capacity=2)
    holders = [await start(connections, "") for _ in range(3)]
    assert [one.is_granted for one in holders] == [True, True, False]
