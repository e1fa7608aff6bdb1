"""The loop of a worker process: receive a call, do it, send its result.

A worker imports the modules of its calls and nothing else; it has no connections but that to its
parent.
"""

import fcntl
import os
import pickle
import signal
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from spawnmesh_runtime.workarounds.malloc_thresholds import fix_malloc_thresholds

_NICENESS = 5
"""The event loop of the parent gets a processor first if there are too few."""

_OOM_SCORE = 500
"""If memory runs out, the kernel ends a worker before it ends the service."""


Call = partial[Any]
"""A function with its arguments, all of which can be pickled."""


class WorkResult(NamedTuple):
    """The result of a call, or the exception that it raised."""

    value: Any = None
    error: Exception | None = None


def serve(connection: "Connection[bytes, bytes]", modules: Sequence[str]) -> None:
    """Do calls, one after the other, until the parent closes the connection or ends.

    Before the first one, import the modules that the parent of the process has not.
    """
    _end_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):  # Sent to the whole group; the parent handles them.
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    fix_malloc_thresholds()
    for module in modules:
        import_module(module)
    with suppress(EOFError, OSError):
        connection.send_bytes(b"ready")
        while True:
            connection.send_bytes(_answer_to(connection.recv_bytes()))


def _end_with_parent() -> None:
    """Have the kernel end this process when the parent does, also in the middle of a computation.

    The parent holds the other end of the pipe. Nothing is written to it; when it closes, the kernel
    sends SIGIO, whose default action ends the process. A thread that waits for the end could not
    run while a regular expression holds the interpreter.
    """
    parent = parent_process()
    if parent is None:
        raise RuntimeError("a worker process is started by multiprocessing")
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(parent.sentinel, fcntl.F_GETFL)
    fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, flags | os.O_ASYNC)


def _answer_to(request: bytes) -> bytes:
    try:
        call: Call = pickle.loads(request)  # noqa: S301 - sent by the parent alone
        return pickle.dumps(WorkResult(call()))
    except Exception as error:  # noqa: BLE001 - the parent raises it
        error.add_note("in a worker process:\n" + traceback.format_exc())
        return _pickled_error(error)


def _pickled_error(error: Exception) -> bytes:
    try:
        pickled = pickle.dumps(WorkResult(error=error))
        pickle.loads(pickled)  # noqa: S301 - an exception with arguments of its own may not come back
    except Exception:  # noqa: BLE001
        return pickle.dumps(WorkResult(error=RuntimeError(f"{type(error).__name__} in a worker process")))
    return pickled
