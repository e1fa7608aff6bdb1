"""A loop that was cancelled hears of it, even where the cancellation was lost."""

import asyncio
from contextlib import suppress

import pytest
from spawnmesh_core.cancellation import raise_if_cancelled


async def test_a_cancellation_that_was_lost_is_raised_in_the_next_round() -> None:
    rounds = 0

    async def loop() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            with suppress(asyncio.CancelledError):  # As what it waits for may do.
                await asyncio.Event().wait()
            raise_if_cancelled()

    task = asyncio.create_task(loop())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(task), 5)
    assert rounds == 1


async def test_whoever_was_not_cancelled_goes_on() -> None:
    raise_if_cancelled()
