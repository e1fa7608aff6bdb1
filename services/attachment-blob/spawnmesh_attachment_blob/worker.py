"""Collects the garbage of every tenant, over and over."""

import asyncio

import psycopg
import structlog
from spawnmesh_core.cancellation import heed_cancellation
from spawnmesh_core.errors import MeshError
from spawnmesh_postgres.database import EVERY_TENANT, Database
from spawnmesh_postgres.worker_beats import beat_for_ever

from spawnmesh_attachment_blob import garbage_store, store
from spawnmesh_attachment_blob.collecting import Collecting

_PAGE = 200
_LONGEST_PAUSE_SECONDS = 60.0

log = structlog.get_logger()


class Worker:
    """Several may work at the same time: each tenant is taken by one of them in each interval."""

    def __init__(self, database: Database, collecting: Collecting, interval_seconds: float) -> None:
        self._database = database
        self.collecting = collecting
        self._interval_seconds = interval_seconds

    async def work(self) -> None:
        """Works until cancelled; while the database or S3 is away it tries again."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(beat_for_ever(self._database, "attachment-blob-worker"), name="beat")
            while True:
                await self.work_once()
                await asyncio.sleep(min(self._interval_seconds, _LONGEST_PAUSE_SECONDS))

    async def work_once(self) -> None:
        """Collects for the tenants whose turn has come. What goes wrong for one of them is logged and does not stop the others."""
        after = ""
        while True:
            try:
                async with self._database.transaction(EVERY_TENANT) as connection:
                    tenant_ids = await store.list_tenants(connection, after, _PAGE)
            except psycopg.Error as error:
                heed_cancellation()
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
                is_ours = await garbage_store.claim_collection(connection, tenant_id, self._interval_seconds)
            if is_ours:
                await self.collecting.collect(tenant_id, dry_run=False)
        except (MeshError, psycopg.Error) as error:
            heed_cancellation()
            log.warning("collection_failed", tenant=tenant_id, error=type(error).__name__)
