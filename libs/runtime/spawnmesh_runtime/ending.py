"""The end of what a process does for as long as it runs, and of what it leaves on its loop."""

import asyncio
import ctypes
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import structlog

_MARGIN_SECONDS = 5.0  # For what comes behind the grace: connections are closed, jobs are given back.
_LEFT_SECONDS = 4.0  # With that margin, and the 5 s of the last spans, within the 15 s that a pod has behind its grace.
_AGAIN_SECONDS = 1.0

Tasks = set["asyncio.Task[Any]"]


async def end(working: "asyncio.Task[Any]", *, grace_seconds: float) -> None:
    """Cancels the task, which may take the grace to end in, and waits for its end. What it raised is its owner's to look at.

    A task that takes longer has not heard of it: a library lost the cancellation, or an error took its place. Then all tasks of the loop but
    the caller's are cancelled once more, every second until it ends, and where each of them waits is logged.
    """
    working.cancel()
    await asyncio.wait({working}, timeout=grace_seconds + _MARGIN_SECONDS)
    while not working.done():
        others = _others()
        _tell("does_not_end", others)
        await _cancel(others, until={working})


def close(loop: asyncio.AbstractEventLoop) -> None:
    """Ends the tasks that are left on the loop, which nothing runs any more, and closes it, within some seconds.

    The tasks are cancelled every second. Those that go on all the same are left behind, and where each of them waits is logged; the runner of
    the standard library would wait for them for ever. A SystemExit of theirs is not heard: the process ends already, in its own way. Not
    bounded is how long threads of the loop work, whom nobody can stop, and how long asynchronous generators take to be closed.
    """
    try:
        ending = loop.create_task(_end_what_is_left())
        while not ending.done():
            with suppress(SystemExit):
                loop.run_until_complete(ending)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


async def _end_what_is_left() -> None:
    clock = asyncio.get_running_loop().time
    give_up = clock() + _LEFT_SECONDS
    while (left := _others()) and clock() < give_up:
        await _cancel(left, until=left)
    if left:
        _tell("left_behind", left)
        for task in left:
            _keep(task)


def _others() -> Tasks:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def _cancel(tasks: Tasks, *, until: Tasks) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(until, timeout=_AGAIN_SECONDS)


def _keep(task: "asyncio.Task[Any]") -> None:
    """Lets no end of the interpreter take the task apart.

    Its coroutine would be told to leave once more then, and one that swallows that too would run for ever, with no loop to wait on.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))


def _tell(event: str, tasks: Iterable["asyncio.Task[Any]"]) -> None:
    structlog.get_logger().warning(event, waiting=sorted(map(_where, tasks)))


def _where(task: "asyncio.Task[Any]") -> str:
    """The task's name, and the functions in which it waits, outermost first."""
    functions: list[str] = []
    waiting: Any = task.get_coro()
    while waiting is not None:
        if code := getattr(waiting, "cr_code", None):
            functions.append(code.co_qualname)
        waiting = getattr(waiting, "cr_await", None)
    return f"{task.get_name()}: {' > '.join(functions)}"
