"""How many uploads are received at the same time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

_WAIT_SECONDS = 45.0  # Longer than a sender may be silent, so that who waits gets the place of one that is.
_AGAIN_SECONDS = 5.0


class UploadPlaces:
    """Half of the places, or one, is the most that one tenant has: whose senders dawdle leaves room for others."""

    def __init__(self, max_streams: int) -> None:
        self._places = asyncio.Semaphore(max_streams)
        self._max_of_tenant = max(1, max_streams // 2)
        self._of_tenant: dict[str, asyncio.Semaphore] = {}
        self._interested: Counter[str] = Counter()

    @asynccontextmanager
    async def taken(self, tenant_id: str) -> AsyncIterator[None]:
        """One place, for the block. Raises POOL_EXHAUSTED where none was free for long."""
        self._interested[tenant_id] += 1
        try:
            own = self._of_tenant.setdefault(tenant_id, asyncio.Semaphore(self._max_of_tenant))
            async with AsyncExitStack() as held:
                try:
                    async with asyncio.timeout(_WAIT_SECONDS):
                        await held.enter_async_context(own)
                        await held.enter_async_context(self._places)
                except TimeoutError:
                    raise _all_taken() from None
                yield
        finally:
            self._interested[tenant_id] -= 1
            if not self._interested[tenant_id]:
                del self._interested[tenant_id], self._of_tenant[tenant_id]


def _all_taken() -> MeshError:
    return MeshError(
        Reason.POOL_EXHAUSTED,
        "as many uploads are received as may be at the same time; call again later",
        retry_after_seconds=_AGAIN_SECONDS,
        facts={"pool": "uploads"},
    )
