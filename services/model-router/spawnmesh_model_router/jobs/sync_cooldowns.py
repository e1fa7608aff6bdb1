"""Keep the cooldowns in memory equal to the database."""

import asyncio

from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_postgres.listener import Subscription

from spawnmesh_model_router.operations.cooldown_cache import CooldownCache

_INTERVAL_SECONDS = 30.0  # Bounds how long a lost notification can matter.
_RETRY_SECONDS = 1.0
# Changes come in bursts, and the calls that make them do not wait for the save.
_BATCH_SECONDS = 0.01


async def sync_cooldowns(cache: CooldownCache, changes: Subscription) -> None:
    """Sync the cache whenever a cooldown changes, here or in another replica, until cancelled."""
    is_available = True
    while True:
        if is_available:
            await changes.wait(_INTERVAL_SECONDS)
            await asyncio.sleep(_BATCH_SECONDS)
        else:
            await asyncio.sleep(_RETRY_SECONDS)
        is_available = await cache.sync()
        raise_if_cancelled()
