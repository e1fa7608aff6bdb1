"""Ctrl-C ends a command whenever it arrives."""

import asyncio
import signal
import threading

import pytest
from spawnmesh_runtime.interruptible import run_interruptible

_LATE_SECONDS = 60.0


def test_what_the_command_gives_is_given() -> None:
    async def answer() -> int:
        return 42

    assert run_interruptible(answer()) == 42
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_that_does_not_interrupt_the_loops_sleep_ends_the_command() -> None:
    """The signal arrives just before the loop waits: another thread receives it."""
    closed = []

    async def wait() -> None:
        threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT)).start()
        try:
            await asyncio.sleep(_LATE_SECONDS)
        finally:
            closed.append(True)

    with pytest.raises(KeyboardInterrupt):
        run_interruptible(wait())
    assert closed == [True]


def test_a_command_that_is_cancelled_by_itself_was_not_interrupted() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_interruptible(cancelled())


def test_sigterm_ends_a_command_gracefully() -> None:
    # This process goes on even if the command fails.
    signal.signal(signal.SIGTERM, lambda *_: None)
    closed = []

    async def wait() -> None:
        signal.raise_signal(signal.SIGTERM)
        try:
            await asyncio.sleep(_LATE_SECONDS)
        finally:
            closed.append(True)

    with pytest.raises(SystemExit) as ended:
        run_interruptible(wait())
    assert (ended.value.code, closed) == (143, [True])
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
