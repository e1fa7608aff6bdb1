"""Masking of secrets in texts of runs and messages, for tenants whose settings demand it."""

import asyncio

from spawnmesh_core.secrets import mask_text

_THREAD_CHARS = 16 * 1024  # Masking more characters takes several milliseconds.


async def mask_secrets(text: str) -> str:
    """Return the text as a masking transcript stores it. A large text is masked in a thread.

    For use in a transaction, which may not wait for a worker process.
    """
    if len(text) < _THREAD_CHARS:
        return mask_text(text)
    return await asyncio.to_thread(mask_text, text)
