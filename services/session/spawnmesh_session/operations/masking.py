"""Takes secrets out of what this service keeps of runs and messages, for tenants whose settings say so."""

import asyncio

from spawnmesh_core.secrets import mask_text

_IN_A_THREAD = 16 * 1024  # Characters that take several milliseconds.


async def masked(text: str) -> str:
    """The text as a transcript keeps it where secrets are masked; in a thread where it is large."""
    if len(text) < _IN_A_THREAD:
        return mask_text(text)
    return await asyncio.to_thread(mask_text, text)
