"""Spawns go on without their callers, up to a limit, and end with their replica."""

import asyncio
from typing import Any

import pytest
from spawnmesh_session.operations.spawns_in_progress import SpawnsInProgress

SESSION: Any = object()


class Work:
    """A spawn that ends when it is told to."""

    def __init__(self) -> None:
        self.begun, self.go_on, self.ended = asyncio.Event(), asyncio.Event(), ""

    async def __call__(self) -> Any:
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.ended = "cut off"
            raise
        self.ended = "spawned"
        return SESSION


async def left(in_progress: SpawnsInProgress) -> Work:
    """Return a spawn that is in progress and whose caller has gone away."""
    work = Work()
    caller = asyncio.create_task(in_progress.wait_for(in_progress.start(work())))
    await work.begun.wait()
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    return work


async def test_a_caller_gets_the_session() -> None:
    in_progress, work = SpawnsInProgress(1), Work()
    work.go_on.set()
    assert await in_progress.wait_for(in_progress.start(work())) is SESSION


async def test_as_many_as_the_limit_go_on_without_a_caller() -> None:
    in_progress = SpawnsInProgress(1)
    first, second = await left(in_progress), await left(in_progress)
    await asyncio.sleep(0)
    assert (first.ended, second.ended) == ("", "cut off")
    first.go_on.set()
    await in_progress.finish(1.0)
    assert first.ended == "spawned"
    third = await left(in_progress)
    third.go_on.set()
    await in_progress.finish(1.0)
    assert third.ended == "spawned"


@pytest.mark.parametrize(("grace_seconds", "ended"), [(0.0, "cut off"), (5.0, "spawned")])
async def test_the_end_of_a_replica_waits_for_the_grace_time(grace_seconds: float, ended: str) -> None:
    in_progress = SpawnsInProgress(1)
    work = await left(in_progress)
    asyncio.get_running_loop().call_later(0.02, work.go_on.set)
    await in_progress.finish(grace_seconds)
    assert work.ended == ended
