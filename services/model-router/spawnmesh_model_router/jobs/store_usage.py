"""Store the spending and the failed calls of tenants."""

import asyncio

from spawnmesh_core.cancellation import raise_if_cancelled

from spawnmesh_model_router.operations.usage_log import UsageLog

_INTERVAL_SECONDS = 1.0  # What a replica that is killed loses. A tenant with calls costs a transaction.


async def store_usage(usage: UsageLog) -> None:
    """Store what was charged and what failed, about a second later, until cancelled."""
    while True:
        await usage.wait()
        await asyncio.sleep(_INTERVAL_SECONDS)
        await usage.flush()
        raise_if_cancelled()
