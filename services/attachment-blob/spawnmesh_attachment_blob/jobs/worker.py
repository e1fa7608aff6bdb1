"""The worker process: background jobs, and the garbage of all tenants at intervals."""

import asyncio

import psycopg
import structlog
from spawnmesh_core.audit_event import Record
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.errors import MeshError
from spawnmesh_postgres.database import ALL_TENANTS, Database
from spawnmesh_postgres.jobs.worker import JobWorker
from spawnmesh_postgres.worker_heartbeats import send_heartbeats

from spawnmesh_attachment_blob.operations.garbage_collector import GarbageCollector
from spawnmesh_attachment_blob.store import tenants

_PAGE = 200
_MAX_PAUSE_SECONDS = 60.0

log = structlog.get_logger()


class Worker:
    """Several workers may run. One of them claims each tenant in each interval."""

    def __init__(
        self,
        database: Database,
        collector: GarbageCollector,
        interval_seconds: float,
        record: Record,
        jobs: JobWorker,
    ) -> None:
        self._database = database
        self.collector = collector
        self._interval_seconds = interval_seconds
        self._record = record
        self.jobs = jobs

    async def work(self) -> None:
        """Work until cancelled. Retry while the database or S3 is unavailable."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send_heartbeats(self._database, "attachment-blob-worker"), name="beat")
            tasks.create_task(self.jobs.run_jobs_forever(), name="jobs")
            while True:
                await self.work_once()
                await asyncio.sleep(min(self._interval_seconds, _MAX_PAUSE_SECONDS))

    async def work_once(self) -> None:
        """Collect for each tenant that is due. A failure of one tenant is logged and skipped."""
        after = ""
        while True:
            try:
                async with self._database.transaction(ALL_TENANTS) as connection:
                    tenant_ids = await tenants.list_tenants(connection, after, _PAGE)
            except psycopg.Error as error:
                raise_if_cancelled()
                log.warning("collection_failed", error=type(error).__name__)
                return
            for tenant_id in tenant_ids:
                await self._collect(tenant_id)
            if len(tenant_ids) < _PAGE:
                return
            after = tenant_ids[-1]

    async def _collect(self, tenant_id: str) -> None:
        try:
            async with self._database.transaction(tenant_id) as connection:
                is_ours = await tenants.claim_collection(connection, tenant_id, self._interval_seconds)
            if is_ours:
                await self.collector.collect(tenant_id, dry_run=False, record=self._record)
        except (MeshError, psycopg.Error) as error:
            raise_if_cancelled()
            log.warning("collection_failed", tenant=tenant_id, error=type(error).__name__)
