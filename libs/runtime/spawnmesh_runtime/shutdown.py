"""End background work and the tasks that remain on the event loop, even if they ignore a
cancellation.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import structlog

from spawnmesh_runtime.workarounds.abandoned_tasks import keep_alive

_MARGIN_SECONDS = 5.0  # After the grace: close connections and return jobs.
# With the margin and the 5 s for the last spans, less than the 15 s that a pod has after its grace.
_CLOSE_SECONDS = 4.0
_RETRY_SECONDS = 1.0

Tasks = set["asyncio.Task[Any]"]


async def cancel_and_wait(working: "asyncio.Task[Any]", *, grace_seconds: float) -> None:
    """Cancel the task and wait until it ends. The owner of the task handles its exception.

    If the task takes longer than the grace and a margin of 5 s, its cancellation was lost: a
    library swallowed it, or an error replaced it. The function then cancels all other tasks of the
    loop every second until the task ends, and logs where each of them waits.
    """
    working.cancel()
    await asyncio.wait({working}, timeout=grace_seconds + _MARGIN_SECONDS)
    while not working.done():
        others = _others()
        _log("task_ignores_cancellation", others)
        await _cancel(others, until={working})


def close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """End the tasks that remain on a loop that no longer runs, and close the loop, within 4 s.

    The function cancels the tasks every second. It abandons those that do not end and logs where
    each of them waits; `asyncio.Runner` would wait for them forever. It ignores a SystemExit of a
    task, since the process already ends. It does not bound the time of the loop's threads, which
    cannot be stopped, or of closing asynchronous generators.
    """
    try:
        closing = loop.create_task(_end_remaining_tasks())
        while not closing.done():
            with suppress(SystemExit):
                loop.run_until_complete(closing)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


async def _end_remaining_tasks() -> None:
    clock = asyncio.get_running_loop().time
    deadline = clock() + _CLOSE_SECONDS
    while (remaining := _others()) and clock() < deadline:
        await _cancel(remaining, until=remaining)
    if remaining:
        _log("tasks_abandoned", remaining)
        for task in remaining:
            keep_alive(task)


def _others() -> Tasks:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def _cancel(tasks: Tasks, *, until: Tasks) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(until, timeout=_RETRY_SECONDS)


def _log(event: str, tasks: Iterable["asyncio.Task[Any]"]) -> None:
    structlog.get_logger().warning(event, waiting=sorted(map(_stack, tasks)))


def _stack(task: "asyncio.Task[Any]") -> str:
    """Return the name of the task and the functions in which it waits, outermost first."""
    functions: list[str] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        if code := getattr(awaited, "cr_code", None):
            functions.append(code.co_qualname)
        awaited = getattr(awaited, "cr_await", None)
    return f"{task.get_name()}: {' > '.join(functions)}"
