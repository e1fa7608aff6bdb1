"""Work that is cancelled ends, also if a library swallows the cancellation."""

import asyncio
from typing import Any

import pytest
from spawnmesh_runtime import shutdown
from spawnmesh_runtime.shutdown import cancel_and_wait

# A loop for each test: in the shared loop, the resources of other tests would be cancelled too.
pytestmark = pytest.mark.asyncio(loop_scope="function")


@pytest.fixture
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the margin and the retry interval."""
    monkeypatch.setattr(shutdown, "_MARGIN_SECONDS", 0.05)
    monkeypatch.setattr(shutdown, "_RETRY_SECONDS", 0.05)


async def loses_cancellations(count: int) -> None:
    """Swallow some cancellations, as a library may."""
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
@pytest.mark.usefixtures("short_intervals")
async def test_a_swallowed_cancellation_is_repeated_and_the_waiting_tasks_are_logged(
    count: int, events: Any
) -> None:
    working = asyncio.create_task(in_a_group(count), name="worker")
    await asyncio.sleep(0.01)
    async with asyncio.timeout(60):
        await cancel_and_wait(working, grace_seconds=0)
    assert working.cancelled()
    assert [event["event"] for event in events] == ["task_ignores_cancellation"] * count
    told: list[Any] = events[0]["waiting"]
    assert any(one.startswith("the lost one: loses_cancellations > Event.wait") for one in told), told
    assert any(one.startswith("worker: in_a_group > TaskGroup.__aexit__") for one in told), told


async def test_a_task_may_end_within_its_grace(events: Any) -> None:
    done: list[str] = []

    async def takes_its_time() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            done.append("cleaned up")

    working = asyncio.create_task(takes_its_time())
    await asyncio.sleep(0)
    await cancel_and_wait(working, grace_seconds=60)
    assert (done, events) == (["cleaned up"], [])


async def test_the_exception_of_the_task_is_not_raised() -> None:
    async def fails() -> None:
        raise OSError("gone")

    working = asyncio.create_task(fails())
    await asyncio.sleep(0)
    await cancel_and_wait(working, grace_seconds=0)
    assert isinstance(working.exception(), OSError)
