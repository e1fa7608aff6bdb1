"""Work for the processor only, apart from the event loop where it takes long: others are served there."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_INLINE_BYTES = 32 * 1024
"""Up to here masking takes about a millisecond and stays on the event loop; a thread costs more than that."""


async def apart(size_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What the work makes of so many bytes, in a thread where they are many. Raises what it raises."""
    if size_bytes <= _INLINE_BYTES:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)
