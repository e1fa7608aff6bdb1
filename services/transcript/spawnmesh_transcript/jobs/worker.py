"""Run background jobs, and maintain the data of every tenant, round after round."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import psycopg
import structlog
from psycopg_pool import PoolTimeout
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.errors import MeshError, error_label
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs.worker import JobWorker
from spawnmesh_postgres.worker_heartbeats import send_heartbeats

from spawnmesh_transcript.metrics import SizeMetrics
from spawnmesh_transcript.store import tenants as tenant_store

MaintenanceTask = Callable[[str], Awaitable[object]]
"""Work for one tenant that is repeated in each round."""

_PAGE = 200
_AWAY = (psycopg.Error, PoolTimeout)

log = structlog.get_logger()


class Worker:
    """Run the background jobs, and the maintenance of each tenant in order.

    Several workers may run: in each interval, one of them takes a tenant.
    """

    def __init__(
        self,
        database: Database,
        maintenance: Mapping[str, MaintenanceTask],
        metrics: SizeMetrics,
        stop: asyncio.Event,
        *,
        interval_seconds: float,
        jobs: JobWorker,
    ) -> None:
        self._database = database
        self._maintenance = maintenance
        self._metrics = metrics
        self._stop = stop
        self._interval_seconds = interval_seconds
        self.jobs = jobs

    async def work(self) -> None:
        """Work until stopped. Retries while the database or another service is unavailable."""
        async with asyncio.TaskGroup() as tasks:
            beat = send_heartbeats(self._database, "transcript-worker")
            background = [
                tasks.create_task(beat, name="beat"),
                tasks.create_task(self.jobs.run_jobs_forever(), name="jobs"),
            ]
            while not self._stop.is_set():
                await self.work_once()
                try:
                    async with asyncio.timeout(self._interval_seconds):
                        await self._stop.wait()
                except TimeoutError:
                    continue
            for task in background:
                task.cancel()

    async def work_once(self) -> None:
        """Maintain the tenants that are due.

        A failure for one tenant is logged and stops no other.
        """
        after = ""
        logical_bytes = stored_bytes = 0
        while True:
            try:
                tenant_ids = await tenant_store.list_tenants(
                    self._database, after_tenant_id=after, row_count=_PAGE
                )
                for tenant_id in tenant_ids:
                    if self._stop.is_set():
                        return
                    async with self._database.transaction(tenant_id) as connection:
                        sizes = await tenant_store.sum_sizes(connection, tenant_id)
                        is_ours = await tenant_store.claim_tenant(
                            connection, tenant_id, interval_seconds=self._interval_seconds
                        )
                    logical_bytes, stored_bytes = logical_bytes + sizes[0], stored_bytes + sizes[1]
                    if is_ours:
                        await self._work_for(tenant_id)
            except _AWAY as error:
                raise_if_cancelled()
                log.warning("round_failed", error=error_label(error))
                return
            if len(tenant_ids) < _PAGE:
                break
            after = tenant_ids[-1]
        self._metrics.measured(logical_bytes=logical_bytes, stored_bytes=stored_bytes)

    async def _work_for(self, tenant_id: str) -> None:
        for name, task in self._maintenance.items():
            if self._stop.is_set():
                return
            try:
                await task(tenant_id)
            except MeshError as error:
                raise_if_cancelled()
                log.warning("maintenance_failed", task=name, tenant=tenant_id, reason=error.reason)
            except _AWAY as error:
                raise_if_cancelled()
                log.warning("maintenance_failed", task=name, tenant=tenant_id, error=error_label(error))
