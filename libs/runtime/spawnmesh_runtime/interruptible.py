"""Run a command that a person may interrupt."""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_SIGNAL_EXIT_CODE = 128  # Plus the number of the signal: the exit code of a shell.


def run_interruptible(main: Coroutine[Any, Any, T]) -> T:
    """Run the main coroutine of a command and return its result.

    Ctrl-C and SIGTERM cancel it. When it has ended, the function raises KeyboardInterrupt or
    SystemExit.

    The event loop handles Ctrl-C and wakes up for it. With `asyncio.run` alone, the interpreter
    handles it, and does not notice a signal that arrives just as the loop starts to wait.
    """
    received: list[signal.Signals] = []
    try:
        return asyncio.run(_cancel_on_signals(main, received))
    except asyncio.CancelledError:
        if signal.SIGTERM in received:
            raise SystemExit(_SIGNAL_EXIT_CODE + signal.SIGTERM) from None
        if received:
            raise KeyboardInterrupt from None
        raise


async def _cancel_on_signals(main: Coroutine[Any, Any, T], received: list[signal.Signals]) -> T:
    task = asyncio.ensure_future(main)

    def stop(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    # Only the main thread receives signals.
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
    return await task
