"""Ctrl-C, whenever it comes."""

import asyncio
import signal
import threading
from time import monotonic

import pytest
from spawnmesh_runtime.foreground import run_in_foreground

_SOON_SECONDS = 10.0
_LATE_SECONDS = 20.0


def test_what_the_command_gives_is_given() -> None:
    async def answer() -> int:
        return 42

    assert run_in_foreground(answer()) == 42
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_that_does_not_interrupt_the_loops_sleep_ends_the_command() -> None:
    """As where it comes right before the loop goes to sleep: a thread that is not the loop's takes it."""
    closed = []

    async def wait() -> None:
        threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT)).start()
        try:
            await asyncio.sleep(_LATE_SECONDS)
        finally:
            closed.append(True)

    begun = monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_in_foreground(wait())
    assert monotonic() - begun < _SOON_SECONDS
    assert closed == [True]


def test_a_command_that_is_cancelled_by_itself_was_not_interrupted() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_in_foreground(cancelled())


def test_a_command_that_is_told_to_end_ends_in_order() -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)  # Whatever becomes of the command, this process goes on.
    closed = []

    async def wait() -> None:
        signal.raise_signal(signal.SIGTERM)
        try:
            await asyncio.sleep(_LATE_SECONDS)
        finally:
            closed.append(True)

    with pytest.raises(SystemExit) as ended:
        run_in_foreground(wait())
    assert (ended.value.code, closed) == (143, [True])
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
