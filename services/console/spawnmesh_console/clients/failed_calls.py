"""The failed calls of a tenant, as the model router lists them."""

import asyncio
from collections.abc import Sequence
from datetime import datetime

from spawnmesh_client.client import Mesh
from spawnmesh_client.failures import FailureDimension, FailureRow

from spawnmesh_console.domain.failed_calls import FailedCalls, ListedFailures


async def listed_failures(
    mesh: Mesh, begin: datetime
) -> tuple[Sequence[ListedFailures], Sequence[ListedFailures]]:
    """Return the failed calls from the hour `begin` on: by model and reason, and by hour."""

    async def listed(*dimensions: FailureDimension) -> list[ListedFailures]:
        rows = await mesh.models.failures(start_time=begin, group_by=dimensions)
        return [_row(one) for one in rows]

    by_model, by_hour = await asyncio.gather(
        listed(FailureDimension.MODEL, FailureDimension.REASON), listed(FailureDimension.HOUR)
    )
    return by_model, by_hour


def _row(one: FailureRow) -> ListedFailures:
    calls = FailedCalls(one.failure_count, one.failover_count, one.end_count)
    return ListedFailures(calls, one.hour_time, one.model, one.reason or "")
