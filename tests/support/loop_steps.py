"""Measure for how long a task keeps the event loop from other tasks."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

_PAUSE_SECONDS = 0.001


@dataclass
class StepTimes:
    """The longest step, in seconds of the processor: other processes do not count."""

    longest_seconds: float = 0.0


@asynccontextmanager
async def longest_step() -> AsyncIterator[StepTimes]:
    """Measure the steps of the event loop during the block, without the garbage collector."""
    steps = StepTimes()

    async def measure() -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(_PAUSE_SECONDS)
            steps.longest_seconds = max(steps.longest_seconds, time.thread_time() - before)

    gc.disable()
    try:
        async with asyncio.TaskGroup() as group:
            measuring = group.create_task(measure())
            try:
                yield steps
                await asyncio.sleep(2 * _PAUSE_SECONDS)  # The last step counts too.
            finally:
                measuring.cancel()
    finally:
        gc.enable()
