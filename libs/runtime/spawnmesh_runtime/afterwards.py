"""What is left to do when a call is answered, and must not keep its caller waiting."""

import asyncio
from collections.abc import Callable


def afterwards(left: Callable[[], None]) -> None:
    """Calls `left` in the current context as soon as the task that runs now waits for something: an answer that it gave is on its way by then.

    One after the other, in the order they were left in. For what takes microseconds and cannot fail.
    """
    asyncio.get_running_loop().call_soon(left)
