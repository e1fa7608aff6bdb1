"""Keep a cancellation of a task from being lost or from interrupting work that must be
completed.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def raise_if_cancelled() -> None:
    """Raise CancelledError if the running task has a pending cancellation request.

    Call it in a loop that continues after an error. An error may have replaced the cancellation:
    this happens if a task group of Python 3.11 is cancelled while one of its tasks fails, and if
    cleanup code fails during the cancellation.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def shield_until_done(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, and delay a cancellation until the work is done.

    The function sets no time limit: `work` must end on its own.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # The first cancellation is raised below.
                await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # Marks the exception as retrieved; the cancelled caller cannot do it.
        raise


async def run_all(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run the coroutines at the same time; when all have ended, raise the first error, if any.

    Use it in what a job does. A task group of Python 3.11 that fails leaves a request of
    cancellation to its task, for which `raise_if_cancelled` would take the failure.
    """
    results = await asyncio.gather(*coroutines, return_exceptions=True)
    for error in results:
        if error is not None:
            raise error


async def cut_short(work: Coroutine[Any, Any, T], stop: asyncio.Event, error: type[Exception]) -> T:
    """Return the result of `work`. If `stop` is set before, cancel the work.

    Raises the error then, after the work has ended.
    """
    if stop.is_set():
        work.close()
        raise error
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait((working,))
        if working.cancelled():
            raise error
        return working.result()
    finally:
        stopping.cancel()
        if not working.done():  # This task was cancelled.
            working.cancel()
            await asyncio.wait((working,))
