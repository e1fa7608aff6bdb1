"""Deletes deliveries, decisions and events that are past their retention."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import psycopg
import structlog
from psycopg_pool import PoolTimeout
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_postgres.database import ALL_TENANTS, Database

from spawnmesh_hook.store.retention import delete_old_rows

_INTERVAL_SECONDS = 600.0
_BATCH_ROWS = 5_000


@dataclass(frozen=True, slots=True)
class LogPruner:
    """Deletes rows older than `retention`, every ten minutes."""

    database: Database
    retention: timedelta

    async def prune_until_cancelled(self) -> None:
        """Delete old rows, now and every ten minutes.

        While the database is unavailable, keep trying.
        """
        while True:
            try:
                while await self.prune_batch() >= _BATCH_ROWS:
                    pass
            except (psycopg.Error, PoolTimeout) as error:
                raise_if_cancelled()
                structlog.get_logger().warning("prune_failed", error=type(error).__name__)
            await asyncio.sleep(_INTERVAL_SECONDS)

    async def prune_batch(self) -> int:
        """Delete a bounded number of old rows. Return how many."""
        async with self.database.transaction(ALL_TENANTS) as connection:
            return await delete_old_rows(connection, self.retention, _BATCH_ROWS)
