"""Repeat a call that raises CONFLICT: it meets a run that is being ended with its answer."""

import asyncio

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_fixed

_WAIT_SECONDS = 2.0
_PAUSE_SECONDS = 0.02


def retry_while_conflict() -> AsyncRetrying:
    """Return a policy: repeat a call for up to 2 s while it raises CONFLICT, then raise that."""
    return AsyncRetrying(
        retry=retry_if_exception(_is_conflict),
        stop=stop_after_delay(_WAIT_SECONDS),
        wait=wait_fixed(_PAUSE_SECONDS),
        reraise=True,
        sleep=asyncio.sleep,
    )


def _is_conflict(error: BaseException) -> bool:
    return isinstance(error, MeshError) and error.reason is Reason.CONFLICT
