"""Commands that a person runs and may stop."""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_in_foreground(main: Coroutine[Any, Any, T]) -> T:
    """What the command's main coroutine gives. Ctrl-C cancels it; when it has ended, KeyboardInterrupt is raised.

    The loop itself is told of Ctrl-C, and wakes up for it. `asyncio.run` alone leaves it to the interpreter, which does not hear of a signal
    that comes in the instant in which the loop goes to sleep, until something else wakes it.
    """
    pressed = threading.Event()
    try:
        return asyncio.run(_cancelled_by_ctrl_c(main, pressed))
    except asyncio.CancelledError:
        if pressed.is_set():
            raise KeyboardInterrupt from None
        raise


async def _cancelled_by_ctrl_c(main: Coroutine[Any, Any, T], pressed: threading.Event) -> T:
    task = asyncio.ensure_future(main)

    def stop() -> None:
        pressed.set()
        task.cancel()

    if threading.current_thread() is threading.main_thread():  # No other one is told of signals.
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop)
    return await task
