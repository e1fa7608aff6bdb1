"""A cancellation is neither lost nor does it interrupt work that must be completed."""

import asyncio

import pytest
from spawnmesh_core.cancellation import raise_if_cancelled, run_all, shield_until_done


@pytest.mark.parametrize("loses", ["task_group", "cleanup"])
async def test_a_loop_that_continues_after_errors_raises_a_cancellation_that_an_error_replaced(
    loses: str,
) -> None:
    """Without the check the loop would never end: neither form raises CancelledError."""
    asleep = asyncio.Event()

    async def fail_during_cleanup() -> None:
        try:
            asleep.set()
            await asyncio.sleep(60)
        finally:
            raise OSError("the connection is gone as well")

    async def fail_in_group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail_during_cleanup())

    errors: list[Exception] = []

    async def continue_after_errors() -> None:
        while True:
            try:
                await (fail_in_group() if loses == "task_group" else fail_during_cleanup())
            except (OSError, ExceptionGroup) as error:
                errors.append(error)
                raise_if_cancelled()
            await asyncio.sleep(0)

    task = asyncio.create_task(continue_after_errors())
    await asleep.wait()
    task.cancel()
    await asyncio.wait([task], timeout=60)
    assert task.cancelled()
    assert len(errors) == 1


async def test_a_task_that_is_not_cancelled_continues() -> None:
    raise_if_cancelled()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)
    raise_if_cancelled()  # A timeout withdraws its own cancellation.


async def test_shielded_work_is_completed_before_the_cancellation_is_raised() -> None:
    started, finish = asyncio.Event(), asyncio.Event()
    done: list[str] = []

    async def work() -> None:
        started.set()
        await finish.wait()
        done.append("work")

    task = asyncio.create_task(shield_until_done(work()))
    await started.wait()
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    finish.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert done == ["work"]


async def test_all_have_ended_when_the_first_error_is_raised_and_nothing_was_cancelled() -> None:
    ended: list[str] = []

    async def fail(name: str) -> None:
        ended.append(name)
        raise OSError(name)

    async def succeed() -> None:
        await asyncio.sleep(0)
        ended.append("c")

    with pytest.raises(OSError, match="a"):
        await run_all(fail("a"), fail("b"), succeed())
    assert sorted(ended) == ["a", "b", "c"]
    raise_if_cancelled()


async def test_a_cancellation_ends_all_of_them() -> None:
    ended: list[int] = []

    async def wait(number: int) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(number)

    running = asyncio.create_task(run_all(wait(1), wait(2)))
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(ended) == [1, 2]
