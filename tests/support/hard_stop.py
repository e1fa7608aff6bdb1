"""End a test process that is stuck where no exception reaches: the run reports its test as failed.

The time-out of a test raises an exception in the main thread. If that thread is in a callback or a
background task of the event loop just then, the loop takes the exception and the test waits on. A
thread does not depend on the loop, and prints what every task and thread waits for.
"""

import asyncio
import faulthandler
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest

GRACE_SECONDS = 60.0
"""Time from the time-out of a test until its process is ended."""


def time_limit(item: pytest.Item) -> float:
    """Return the seconds that a test may take before its process is ended."""
    marker = item.get_closest_marker("timeout")
    allowed = marker.args[0] if marker is not None else item.config.getini("timeout")
    return float(allowed) + GRACE_SECONDS


def _print_and_exit(name: str, output: TextIO) -> None:
    print(f"\n{name} is stuck. The tasks of its process:", file=output)
    for task in list(getattr(asyncio.tasks, "_all_tasks")):  # noqa: B009 - all loops; no public name has them
        if not task.done():
            task.print_stack(file=output)
    output.flush()
    faulthandler.dump_traceback(file=output)
    os._exit(1)


@contextmanager
def hard_stop(name: str, seconds: float, output: TextIO) -> Iterator[None]:
    """End this process with status 1 if the block takes longer, and print tasks and threads before."""
    timer = threading.Timer(seconds, _print_and_exit, (name, output))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
