"""Commands that a person runs and may stop."""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_ENDED_BY_SIGNAL = 128  # And its number: what a shell says of a program that a signal ended.


def run_in_foreground(main: Coroutine[Any, Any, T]) -> T:
    """What the command's main coroutine gives. Ctrl-C cancels it; when it has ended, KeyboardInterrupt is raised. So does SIGTERM: SystemExit.

    The loop itself is told of Ctrl-C, and wakes up for it. `asyncio.run` alone leaves it to the interpreter, which does not hear of a signal
    that comes in the instant in which the loop goes to sleep, until something else wakes it.
    """
    came: list[signal.Signals] = []
    try:
        return asyncio.run(_cancelled_by_signals(main, came))
    except asyncio.CancelledError:
        if signal.SIGTERM in came:
            raise SystemExit(_ENDED_BY_SIGNAL + signal.SIGTERM) from None
        if came:
            raise KeyboardInterrupt from None
        raise


async def _cancelled_by_signals(main: Coroutine[Any, Any, T], came: list[signal.Signals]) -> T:
    task = asyncio.ensure_future(main)

    def stop(number: signal.Signals) -> None:
        came.append(number)
        task.cancel()

    if threading.current_thread() is threading.main_thread():  # No other one is told of signals.
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
    return await task
