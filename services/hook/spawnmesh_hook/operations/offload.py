"""Runs long computations in a thread, so that the event loop stays free."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_INLINE_BYTES = 32 * 1024
"""Masking this many bytes takes about a millisecond. A thread costs more than that."""


async def offload(size_bytes: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the function, in a thread if it works on more than 32 KiB. Raises what it raises."""
    if size_bytes <= _INLINE_BYTES:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)
