"""What waits for a while hears of its cancellation, whenever it comes."""

import asyncio

import pytest


@pytest.mark.parametrize("steps", range(6))
async def test_a_cancellation_that_meets_the_end_of_what_is_waited_for_is_not_lost(steps: int) -> None:
    happened = asyncio.Event()

    async def wait() -> None:
        await asyncio.wait_for(happened.wait(), 10)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    happened.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    was_under_way = task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() is was_under_way


@pytest.mark.parametrize("timeout", [0.01, 0, -1])
async def test_what_takes_too_long_is_cancelled_and_told(timeout: float) -> None:
    waited_for = asyncio.create_task(asyncio.Event().wait())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waited_for, timeout)
    assert waited_for.cancelled()


async def test_what_comes_in_time_is_given() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    assert await asyncio.wait_for(answer(), 5) == 42
    assert await asyncio.wait_for(answer(), None) == 42
