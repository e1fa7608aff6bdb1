"""Verify some entries of each tenant in each round, transcript by transcript, and begin again."""

import asyncio
from contextlib import aclosing

from spawnmesh_postgres.database import Database

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.prompt_window import Fence
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.verification import Mismatch
from spawnmesh_transcript.operations.verification.report import VerificationReporter
from spawnmesh_transcript.operations.verification.verify import Verified, verify_transcript
from spawnmesh_transcript.store import planner
from spawnmesh_transcript.store import transcripts as transcript_store
from spawnmesh_transcript.store import verification as verification_store
from spawnmesh_transcript.store.verification import VerifiedUpTo

_ROUND_BYTES = 16 * 1024 * 1024  # Bodies that a round reads, beside its limit of entries.


class TranscriptVerifier:
    """Verify transcripts by session id, a few entries in each round.

    A restart continues where the database says. A transcript that is not intact is reported, its
    rest is skipped, and the next pass over the tenant reports it again.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        reporter: VerificationReporter,
        stop: asyncio.Event,
        *,
        entries_per_round: int,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._reporter = reporter
        self._stop = stop
        self._entries_per_round = entries_per_round

    async def verify(self, tenant_id: str) -> None:
        """Verify the next entries of the tenant, at most to the end of its last transcript."""
        async with self._database.transaction(tenant_id) as connection:
            reached = await verification_store.read_verified(connection, tenant_id)
        left, left_bytes = self._entries_per_round, _ROUND_BYTES
        while left > 0 and left_bytes > 0 and not self._stop.is_set():
            session_id = await self._session_at(tenant_id, reached)
            if not session_id:
                await self._move(tenant_id, reached, VerifiedUpTo())
                return
            key = Key(tenant_id, session_id)
            result = await self._next_page(key, reached.fence, left)
            self._reporter.report(key, result)
            if isinstance(result, Mismatch):
                left -= 1
                following = VerifiedUpTo(session_id)
            else:
                left -= result.entry_count
                left_bytes -= result.size_bytes
                following = VerifiedUpTo(session_id, None if result.is_complete else result.fence)
            if not await self._move(tenant_id, reached, following):
                return
            reached = following

    async def _next_page(self, key: Key, start: Fence | None, page_rows: int) -> Verified | Mismatch:
        """Verify entries until there is a result, or at least one more is verified.

        The entry of `start` alone may fill a page.
        """
        results = verify_transcript(self._database, self._blobs, key, start, page_rows=page_rows)
        async with aclosing(results):
            async for result in results:
                if isinstance(result, Mismatch) or result.is_complete or result.entry_count:
                    return result
        raise AssertionError("a verification ends with its result")

    async def _session_at(self, tenant_id: str, reached: VerifiedUpTo) -> str:
        """Return the session to continue with, empty behind the last one."""
        async with self._database.transaction(tenant_id) as connection:
            if reached.fence:
                key = Key(tenant_id, reached.session_id)
                if await transcript_store.read_transcript(connection, key):
                    return reached.session_id
            await planner.keep_index_order(connection)
            listed = await transcript_store.list_transcripts(
                connection, tenant_id, after_session_id=reached.session_id, row_count=1
            )
        return listed[0].session_id if listed else ""

    async def _move(self, tenant_id: str, known: VerifiedUpTo, reached: VerifiedUpTo) -> bool:
        async with self._database.transaction(tenant_id) as connection:
            return await verification_store.put_verified(connection, tenant_id, known, reached)
