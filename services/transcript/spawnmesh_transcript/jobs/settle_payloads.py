"""Finish payload uploads and releases that were cut off."""

import asyncio
from contextlib import aclosing

from spawnmesh_postgres.database import Connection, Database

from spawnmesh_transcript.jobs.transcript_keys import PAGE_ROWS, transcript_keys
from spawnmesh_transcript.metrics import ExternalizationMetrics
from spawnmesh_transcript.operations.payload_uploader import PayloadUploader
from spawnmesh_transcript.store import payloads as payload_store
from spawnmesh_transcript.store import tier as tier_store


async def settle_payloads(
    database: Database,
    uploader: PayloadUploader,
    metrics: ExternalizationMetrics,
    stop: asyncio.Event,
    tenant_id: str,
) -> None:
    """Upload the tenant's pending payloads and release those that are marked for release.

    Raises MeshError if the blob store is unavailable and has payloads to release.
    """
    async with aclosing(transcript_keys(database, tenant_id, _unsettled, stop)) as keys:
        async for key in keys:
            if await uploader.start(key):  # The uploader has recorded the reason as an activity.
                async with database.transaction(tenant_id) as connection:
                    metrics.failed(await payload_store.count_unstored_entries(connection, key))
            await uploader.release_marked(key)


async def _unsettled(connection: Connection, tenant_id: str, after_session_id: str) -> list[str]:
    return await tier_store.list_transcripts_with_unsettled_payloads(
        connection, tenant_id, after_session_id=after_session_id, row_count=PAGE_ROWS
    )
