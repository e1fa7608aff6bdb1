"""Run work after the answer to a call is sent."""

import asyncio
from collections.abc import Callable


def defer(work: Callable[[], None]) -> None:
    """Call `work` in the current context when the running task next waits.

    An answer that the task has given is on its way by then. Deferred calls run one after the other,
    in order. Use it for work that takes microseconds and cannot fail.
    """
    asyncio.get_running_loop().call_soon(work)
