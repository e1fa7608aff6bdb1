"""What the worker does for a tenant: brings payloads to where they are to be, transcript by transcript."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from spawnmesh.transcript.v1 import activity_service_pb2 as activity_pb
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_transcript import payload_store, store, tenant_store, tier_store
from spawnmesh_transcript.activities import Activities
from spawnmesh_transcript.cooling import BATCH_ENTRIES, Cooled, cool, find_stale_seq
from spawnmesh_transcript.metrics import CoolingMetrics
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.store import Key

_PAGE = 100

_Sessions = Callable[[Connection, str, str], Awaitable[list[str]]]


class Cooling:
    """Puts payloads that wait, gives up those that leave, and drops the inline copies of what is no longer fresh.

    Several may be at the same transcript: what one has done the others find done. `stop` ends the work behind what is under way.
    """

    def __init__(
        self,
        database: Database,
        payloads: Payloads,
        activities: Activities,
        metrics: CoolingMetrics,
        stop: asyncio.Event,
        *,
        delay_seconds: float,
    ) -> None:
        self._database = database
        self._payloads = payloads
        self._activities = activities
        self._metrics = metrics
        self._stop = stop
        self._begin_time = monotonic_seconds() + delay_seconds

    async def settle(self, tenant_id: str) -> None:
        """What was cut off between a commit and the blob store. Raises MeshError where that is away and has something to give up."""
        async with aclosing(self._transcripts(tenant_id, _unsettled)) as keys:
            async for key in keys:
                if await self._payloads.put_waiting(key):  # Those who watch the session were told why.
                    async with self._database.transaction(tenant_id) as connection:
                        await store.keep_index_order(connection)
                        self._metrics.failed(await payload_store.count_unput(connection, key))
                await self._payloads.release_leaving(key)

    async def cool(self, tenant_id: str) -> None:
        """Drops inline copies, where the tenant has the tier, and not before the delay."""
        if monotonic_seconds() < self._begin_time or not self._payloads.is_connected:
            return
        async with self._database.transaction(tenant_id) as connection:
            policy = await tenant_store.read_policy(connection, tenant_id)
        if not policy.stub_large_tool_payloads:
            return
        async with aclosing(self._transcripts(tenant_id, _to_cool)) as keys:
            async for key in keys:
                await self._cool(key)

    async def _transcripts(self, tenant_id: str, find: _Sessions) -> AsyncGenerator[Key, None]:
        after = ""
        while True:
            async with self._database.transaction(tenant_id) as connection:
                session_ids = await find(connection, tenant_id, after)
            for session_id in session_ids:
                if self._stop.is_set():
                    return
                yield Key(tenant_id, session_id)
            if len(session_ids) < _PAGE:
                return
            after = session_ids[-1]

    async def _cool(self, key: Key) -> None:
        """A transcript at which something failed that may go better is looked at again in the next round; others when they got longer.

        So is one that had payloads to be put when the look began: what is put meanwhile may have been passed over.
        """
        async with self._database.transaction(key.tenant_id) as connection:
            await store.begin_snapshot(connection)
            transcript = await store.read_transcript(connection, key)
            if transcript is None:
                return
            stale_seq = await find_stale_seq(connection, key, transcript)
            unput_count = await payload_store.count_unput(connection, key, last_seq=stale_seq)
        total = Cooled()
        after_seq = 0
        while not self._stop.is_set():
            async with self._database.transaction(key.tenant_id) as connection:
                entries = await tier_store.inline_entries(
                    connection, key, after_seq=after_seq, last_seq=stale_seq, row_count=BATCH_ENTRIES
                )
            if not entries:
                break
            cooled = await cool(self._database, self._payloads, key, entries)
            total.entry_count += cooled.entry_count
            total.size_bytes += cooled.size_bytes
            total.failures |= cooled.failures
            after_seq = entries[-1].seq
        await self._tell(key, total)
        is_done = all(reason is Reason.STORED_HASH_DIFFERS for reason in total.failures.values()) and not unput_count
        if is_done and not self._stop.is_set():
            async with self._database.transaction(key.tenant_id) as connection:
                await tier_store.mark_cooled(connection, key, transcript.head.seq)

    async def _tell(self, key: Key, cooled: Cooled) -> None:
        self._metrics.cooled(cooled.entry_count, cooled.size_bytes)
        self._metrics.failed(len(cooled.failures))
        if cooled.entry_count:
            tiered = activity_pb.Tiered(entry_count=cooled.entry_count, size_bytes=cooled.size_bytes)
            await self._activities.record(key, activity_pb.Activity(tiered=tiered))
        if cooled.failures:
            seq, reason = max(cooled.failures.items())
            failed = activity_pb.Failed(action="tier", reason=reason, seq=seq)
            await self._activities.record(key, activity_pb.Activity(failed=failed))


async def _unsettled(connection: Connection, tenant_id: str, after_session_id: str) -> list[str]:
    return await tier_store.transcripts_with_unsettled_payloads(
        connection, tenant_id, after_session_id=after_session_id, row_count=_PAGE
    )


async def _to_cool(connection: Connection, tenant_id: str, after_session_id: str) -> list[str]:
    await store.keep_index_order(connection)
    return await tier_store.transcripts_to_cool(
        connection, tenant_id, after_session_id=after_session_id, row_count=_PAGE
    )
