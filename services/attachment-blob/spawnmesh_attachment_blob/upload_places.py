"""How many uploads are received at the same time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class UploadPlaces:
    """Half of the places, or one, is the most that one tenant has: whose senders dawdle leaves room for others."""

    def __init__(self, max_streams: int) -> None:
        self._places = asyncio.Semaphore(max_streams)
        self._max_of_tenant = max(1, max_streams // 2)
        self._of_tenant: dict[str, asyncio.Semaphore] = {}
        self._interested: Counter[str] = Counter()

    @asynccontextmanager
    async def taken(self, tenant_id: str) -> AsyncIterator[None]:
        """One place, for the block."""
        self._interested[tenant_id] += 1
        try:
            own = self._of_tenant.setdefault(tenant_id, asyncio.Semaphore(self._max_of_tenant))
            async with own, self._places:
                yield
        finally:
            self._interested[tenant_id] -= 1
            if not self._interested[tenant_id]:
                del self._interested[tenant_id], self._of_tenant[tenant_id]
