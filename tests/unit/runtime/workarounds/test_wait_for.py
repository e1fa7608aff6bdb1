"""The replaced `asyncio.wait_for` loses no cancellation; the one of Python 3.11 does."""

import asyncio
from typing import Any

import pytest
from spawnmesh_runtime.workarounds.wait_for import replace_wait_for

_ORIGINAL: Any = asyncio.tasks.wait_for  # Only the name in the package `asyncio` is replaced.

replace_wait_for()


async def is_lost(wait_for: Any, steps: int) -> bool:
    """Cancel a waiting task some steps after its event is set; return whether the task
    missed it.
    """
    happened = asyncio.Event()

    async def wait() -> None:
        await wait_for(happened.wait(), 60)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    happened.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    was_running = task.cancel()
    await asyncio.wait([task])
    return task.cancelled() is not was_running


async def test_the_workaround_is_still_needed() -> None:
    assert any([await is_lost(_ORIGINAL, steps) for steps in range(6)]), "remove workarounds/wait_for.py"


@pytest.mark.parametrize("steps", range(6))
async def test_a_cancellation_during_completion_is_not_lost(steps: int) -> None:
    assert not await is_lost(asyncio.wait_for, steps)


@pytest.mark.parametrize("timeout", [0.01, 0, -1])
async def test_a_timeout_cancels_the_awaited_task(timeout: float) -> None:
    waited_for = asyncio.create_task(asyncio.Event().wait())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waited_for, timeout)
    assert waited_for.cancelled()


async def test_a_result_in_time_is_returned() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    assert await asyncio.wait_for(answer(), 60) == 42
    assert await asyncio.wait_for(answer(), None) == 42
