"""Externalize payloads: drop the inline copies of uploaded payloads from entries that are no longer
fresh.
"""

import asyncio
from contextlib import aclosing

from spawnmesh.transcript.v1 import activity_service_pb2 as activity_pb
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.jobs.transcript_keys import PAGE_ROWS, transcript_keys
from spawnmesh_transcript.metrics import ExternalizationMetrics
from spawnmesh_transcript.operations.activity_recorder import ActivityRecorder
from spawnmesh_transcript.operations.externalization import (
    BATCH_ENTRIES,
    DroppedCopies,
    drop_inline_copies,
    find_stale_seq,
)
from spawnmesh_transcript.store import payloads as payload_store
from spawnmesh_transcript.store import snapshots
from spawnmesh_transcript.store import tenants as tenant_store
from spawnmesh_transcript.store import tier as tier_store
from spawnmesh_transcript.store import transcripts as transcript_store


class PayloadExternalizer:
    """Drop inline copies, transcript by transcript.

    Several workers may externalize one transcript: what one has done, the others find done. `stop`
    ends the work after the batch in flight.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        activities: ActivityRecorder,
        metrics: ExternalizationMetrics,
        stop: asyncio.Event,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._activities = activities
        self._metrics = metrics
        self._stop = stop

    async def externalize(self, tenant_id: str) -> None:
        """Drop the inline copies of the tenant, if it has the tier."""
        if not self._blobs.is_connected:
            return
        async with self._database.transaction(tenant_id) as connection:
            policy = await tenant_store.read_policy(connection, tenant_id)
        if not policy.stub_large_tool_payloads:
            return
        async with aclosing(
            transcript_keys(self._database, tenant_id, _with_inline_copies, self._stop)
        ) as keys:
            async for key in keys:
                await self._externalize_transcript(key)

    async def _externalize_transcript(self, key: Key) -> None:
        """Drop the inline copies of one transcript.

        The next round examines it again if something failed that may succeed later, or if payloads
        were pending at the start, since their upload may have been missed. Otherwise it is examined
        again once it is longer.
        """
        async with self._database.transaction(key.tenant_id) as connection:
            await snapshots.begin_snapshot(connection)
            transcript = await transcript_store.read_transcript(connection, key)
            if transcript is None:
                return
            stale_seq = await find_stale_seq(connection, key, transcript)
            pending_count = await payload_store.count_unstored_entries(connection, key, last_seq=stale_seq)
        total = DroppedCopies()
        after_seq = 0
        while not self._stop.is_set():
            async with self._database.transaction(key.tenant_id) as connection:
                entries = await tier_store.list_inline_entries(
                    connection, key, after_seq=after_seq, last_seq=stale_seq, row_count=BATCH_ENTRIES
                )
            if not entries:
                break
            dropped = await drop_inline_copies(self._database, self._blobs, key, entries)
            total.entry_count += dropped.entry_count
            total.size_bytes += dropped.size_bytes
            total.failures |= dropped.failures
            after_seq = entries[-1].seq
        await self._report(key, total)
        is_done = (
            all(reason is Reason.STORED_HASH_DIFFERS for reason in total.failures.values())
            and not pending_count
        )
        if is_done and not self._stop.is_set():
            async with self._database.transaction(key.tenant_id) as connection:
                await tier_store.mark_inline_dropped(connection, key, transcript.head.seq)

    async def _report(self, key: Key, dropped: DroppedCopies) -> None:
        self._metrics.dropped(dropped.entry_count, dropped.size_bytes)
        self._metrics.failed(len(dropped.failures))
        if dropped.entry_count:
            tiered = activity_pb.Tiered(entry_count=dropped.entry_count, size_bytes=dropped.size_bytes)
            await self._activities.record(key, activity_pb.Activity(tiered=tiered))
        if dropped.failures:
            seq, reason = max(dropped.failures.items())
            failed = activity_pb.Failed(action=activity_pb.FAILED_ACTION_TIER, reason=reason, seq=seq)
            await self._activities.record(key, activity_pb.Activity(failed=failed))


async def _with_inline_copies(connection: Connection, tenant_id: str, after_session_id: str) -> list[str]:
    return await tier_store.list_transcripts_with_inline_payloads(
        connection, tenant_id, after_session_id=after_session_id, row_count=PAGE_ROWS
    )
