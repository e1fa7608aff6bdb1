"""What waits for a while hears of its cancellation, whenever it comes."""

import asyncio

import pytest
from spawnmesh_core.cancellation import heed_cancellation


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


@pytest.mark.parametrize("loses", ["task_group", "cleanup"])
async def test_a_loop_that_goes_on_after_errors_hears_of_a_cancellation_whose_place_an_error_took(loses: str) -> None:
    """Without asking it would go on for ever: neither shape raises CancelledError."""
    asleep = asyncio.Event()

    async def fails_on_its_way_out() -> None:
        try:
            asleep.set()
            await asyncio.sleep(60)
        finally:
            raise OSError("the connection is gone as well")

    async def in_a_group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails_on_its_way_out())

    errors: list[Exception] = []

    async def go_on() -> None:
        while True:
            try:
                await (in_a_group() if loses == "task_group" else fails_on_its_way_out())
            except (OSError, ExceptionGroup) as error:
                errors.append(error)
                heed_cancellation()
            await asyncio.sleep(0)

    task = asyncio.create_task(go_on())
    await asleep.wait()
    task.cancel()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()
    assert len(errors) == 1


async def test_nobody_who_was_not_told_to_end_is_ended() -> None:
    heed_cancellation()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)
    heed_cancellation()  # A time limit takes its own cancellation back.
