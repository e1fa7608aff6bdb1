"""Store the spending of tenants by day, agent and model."""

import asyncio

from spawnmesh_core.cancellation import raise_if_cancelled

from spawnmesh_model_router.operations.spend_log import SpendLog

_INTERVAL_SECONDS = 1.0  # What a replica that is killed loses. A tenant with calls costs a transaction.


async def store_spend(spend: SpendLog) -> None:
    """Store what was charged, about a second later, until cancelled."""
    while True:
        await spend.wait()
        await asyncio.sleep(_INTERVAL_SECONDS)
        await spend.flush()
        raise_if_cancelled()
