"""Coroutines that run concurrently."""

import asyncio

import pytest
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.task_group import run_concurrently


async def fail_after(pause_seconds: float) -> None:
    await asyncio.sleep(pause_seconds)
    raise ValueError("a failure")


async def test_the_first_failure_is_raised_and_the_others_are_cancelled() -> None:
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    with pytest.raises(ValueError, match="a failure"):
        await run_concurrently([wait(), fail_after(0.01)])
    assert ended == ["cancelled"]


async def test_a_failure_leaves_the_task_uncancelled() -> None:
    with pytest.raises(ValueError, match="a failure"):
        await run_concurrently([fail_after(0.01)])
    raise_if_cancelled()


async def test_a_cancelled_caller_cancels_all() -> None:
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    running = asyncio.create_task(run_concurrently([wait(), wait()]))
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["cancelled", "cancelled"]
