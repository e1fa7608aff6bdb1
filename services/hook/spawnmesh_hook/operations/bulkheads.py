"""Limits the concurrent calls of each plugin."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from spawnmesh_hook.domain.plugins import Plugin, RegistrationKey, registration_key


@dataclass(slots=True)
class _Bulkhead:
    free: asyncio.Semaphore
    users: int = 0


class Bulkheads:
    """Allows each plugin its `max_concurrent_calls`. Further calls wait in order."""

    def __init__(self) -> None:
        self._bulkheads: dict[RegistrationKey, _Bulkhead] = {}

    @asynccontextmanager
    async def slot(self, tenant_id: str, plugin: Plugin) -> AsyncIterator[None]:
        """Wait for a free slot and hold it for the block."""
        key = registration_key(tenant_id, plugin)
        semaphore = asyncio.Semaphore(plugin.max_concurrent_calls)
        bulkhead = self._bulkheads.setdefault(key, _Bulkhead(semaphore))
        bulkhead.users += 1
        try:
            async with bulkhead.free:
                yield
        finally:
            bulkhead.users -= 1
            if bulkhead.users == 0:
                self._bulkheads.pop(key, None)
