"""What is told to end does end, also where a library loses the telling."""

import asyncio
from typing import Any

import pytest
from spawnmesh_runtime import ending
from spawnmesh_runtime.ending import end

# In a loop of their own: in the one that tests share, everything that other tests stand on would be cancelled too.
pytestmark = pytest.mark.asyncio(loop_scope="function")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the margin nor the pauses are waited for."""
    monkeypatch.setattr(ending, "_MARGIN_SECONDS", 0.05)
    monkeypatch.setattr(ending, "_AGAIN_SECONDS", 0.05)


async def loses_cancellations(count: int) -> None:
    """As a library may: it goes on waiting."""
    while count:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            count -= 1
    await asyncio.Event().wait()


async def in_a_group(count: int) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(loses_cancellations(count), name="the lost one")


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.usefixtures("impatient")
async def test_what_lost_its_cancellation_is_cancelled_again_and_told_where_it_waits(count: int, events: Any) -> None:
    working = asyncio.create_task(in_a_group(count), name="worker")
    await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        await end(working, grace_seconds=0)
    assert working.cancelled()
    assert [event["event"] for event in events] == ["does_not_end"] * count
    told: list[Any] = events[0]["waiting"]
    assert any(one.startswith("the lost one: loses_cancellations > Event.wait") for one in told), told
    assert any(one.startswith("worker: in_a_group > TaskGroup.__aexit__") for one in told), told


async def test_what_ends_within_its_grace_is_left_alone(events: Any) -> None:
    done: list[str] = []

    async def takes_its_time() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            done.append("cleaned up")

    working = asyncio.create_task(takes_its_time())
    await asyncio.sleep(0)
    await end(working, grace_seconds=1)
    assert (done, events) == (["cleaned up"], [])


async def test_what_it_raised_stays_with_it() -> None:
    async def fails() -> None:
        raise OSError("gone")

    working = asyncio.create_task(fails())
    await asyncio.sleep(0)
    await end(working, grace_seconds=0)
    assert isinstance(working.exception(), OSError)
