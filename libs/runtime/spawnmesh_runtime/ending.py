"""The end of what a process does for as long as it runs."""

import asyncio
from typing import Any

import structlog

_MARGIN_SECONDS = 5.0  # For what comes behind the grace: connections are closed, jobs are given back.
_AGAIN_SECONDS = 1.0


async def end(working: "asyncio.Task[Any]", *, grace_seconds: float) -> None:
    """Cancels the task, which may take the grace to end in, and waits for its end. What it raised is its owner's to look at.

    A task that takes longer has not heard of it: a library lost the cancellation, or an error took its place. Then all tasks of the loop but
    the caller's are cancelled once more, every second until it ends, and where each of them waits is logged.
    """
    working.cancel()
    await asyncio.wait({working}, timeout=grace_seconds + _MARGIN_SECONDS)
    while not working.done():
        others = asyncio.all_tasks() - {asyncio.current_task()}
        structlog.get_logger().warning("does_not_end", waiting=sorted(map(_where, others)))
        for task in others:
            task.cancel()
        await asyncio.wait({working}, timeout=_AGAIN_SECONDS)


def _where(task: "asyncio.Task[Any]") -> str:
    """The task's name, and the functions in which it waits, outermost first."""
    functions: list[str] = []
    waiting: Any = task.get_coro()
    while waiting is not None:
        if code := getattr(waiting, "cr_code", None):
            functions.append(code.co_qualname)
        waiting = getattr(waiting, "cr_await", None)
    return f"{task.get_name()}: {' > '.join(functions)}"
