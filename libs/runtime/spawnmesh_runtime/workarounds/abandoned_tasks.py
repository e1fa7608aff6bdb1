"""Keep abandoned tasks alive until the process ends.

Upstream: Python has no issue for it; the language reference specifies that the destruction of a
suspended coroutine calls `close()` on it.

Behaviour: when the interpreter ends, it destroys the tasks that still exist and so throws
GeneratorExit into their coroutines. A coroutine that ignores every exception runs again, without an
event loop to wait on, and may run forever. The process then never ends.

Why here: a process must end even if a task of a library ignores its cancellation.

Remove it when the interpreter can end without closing suspended coroutines.
"""

import asyncio
import ctypes
from typing import Any


def keep_alive(task: "asyncio.Task[Any]") -> None:
    """Add a reference to the task that is never released."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))
