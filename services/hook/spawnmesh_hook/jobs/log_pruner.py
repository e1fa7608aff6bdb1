"""Deletes deliveries, decisions, events and webhook messages that are past their retention."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import psycopg
import structlog
from psycopg_pool import PoolTimeout
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_postgres.database import Database

from spawnmesh_hook.store.retention import delete_old_rows, list_tenants

_INTERVAL_SECONDS = 600.0
_BATCH_ROWS = 5_000
_PAGE_TENANTS = 1_000
_AWAY = (psycopg.Error, PoolTimeout)

log = structlog.get_logger()


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
                await self.prune()
            except _AWAY as error:
                raise_if_cancelled()
                log.warning("prune_failed", error=type(error).__name__)
            await asyncio.sleep(_INTERVAL_SECONDS)

    async def prune(self) -> None:
        """Delete the old rows of each tenant, a bounded number in each transaction.

        A failure for one tenant is logged and stops no other.
        """
        last = ""
        while tenant_ids := await list_tenants(self.database, last, _PAGE_TENANTS):
            for last in tenant_ids:
                try:
                    while await self._prune_batch(last) >= _BATCH_ROWS:
                        pass
                except _AWAY as error:
                    raise_if_cancelled()
                    log.warning("prune_failed", tenant=last, error=type(error).__name__)

    async def _prune_batch(self, tenant_id: str) -> int:
        async with self.database.pipelined(tenant_id) as connection:
            return await delete_old_rows(connection, tenant_id, self.retention, _BATCH_ROWS)
