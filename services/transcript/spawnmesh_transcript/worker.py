"""Looks after the transcripts of every tenant, over and over."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import psycopg
import structlog
from psycopg_pool import PoolTimeout
from spawnmesh_core.cancellation import heed_cancellation
from spawnmesh_core.errors import MeshError, name_of
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.worker_beats import beat_for_ever

from spawnmesh_transcript import tier_store
from spawnmesh_transcript.metrics import SizeMetrics

Job = Callable[[str], Awaitable[object]]
"""Something that is to be done for a tenant, again and again."""

_PAGE = 200
_AWAY = (psycopg.Error, PoolTimeout)

log = structlog.get_logger()


class Worker:
    """Several may work at the same time: each tenant is taken by one of them in each interval. `jobs` by their names, in their order."""

    def __init__(
        self,
        database: Database,
        jobs: Mapping[str, Job],
        metrics: SizeMetrics,
        stop: asyncio.Event,
        *,
        interval_seconds: float,
    ) -> None:
        self._database = database
        self._jobs = jobs
        self._metrics = metrics
        self._stop = stop
        self._interval_seconds = interval_seconds

    async def work(self) -> None:
        """Works until it is stopped; while the database or another service is away it tries again."""
        beat = asyncio.create_task(beat_for_ever(self._database, "transcript-worker"), name="beat")
        try:
            while not self._stop.is_set():
                await self.work_once()
                try:
                    async with asyncio.timeout(self._interval_seconds):
                        await self._stop.wait()
                except TimeoutError:
                    continue
        finally:
            beat.cancel()
            await asyncio.gather(beat, return_exceptions=True)

    async def work_once(self) -> None:
        """Does the jobs of the tenants whose turn has come. What goes wrong for one of them is logged and stops no other."""
        after = ""
        logical_bytes = stored_bytes = 0
        while True:
            try:
                tenant_ids = await tier_store.list_tenants(self._database, after_tenant_id=after, row_count=_PAGE)
                for tenant_id in tenant_ids:
                    if self._stop.is_set():
                        return
                    async with self._database.transaction(tenant_id) as connection:
                        sizes = await tier_store.sum_sizes(connection, tenant_id)
                        is_ours = await tier_store.claim_turn(
                            connection, tenant_id, interval_seconds=self._interval_seconds
                        )
                    logical_bytes, stored_bytes = logical_bytes + sizes[0], stored_bytes + sizes[1]
                    if is_ours:
                        await self._work_for(tenant_id)
            except _AWAY as error:
                heed_cancellation()
                log.warning("round_failed", error=name_of(error))
                return
            if len(tenant_ids) < _PAGE:
                break
            after = tenant_ids[-1]
        self._metrics.measured(logical_bytes=logical_bytes, stored_bytes=stored_bytes)

    async def _work_for(self, tenant_id: str) -> None:
        for name, job in self._jobs.items():
            if self._stop.is_set():
                return
            try:
                await job(tenant_id)
            except MeshError as error:
                heed_cancellation()
                log.warning("job_failed", job=name, tenant=tenant_id, reason=error.reason)
            except _AWAY as error:
                heed_cancellation()
                log.warning("job_failed", job=name, tenant=tenant_id, error=name_of(error))
