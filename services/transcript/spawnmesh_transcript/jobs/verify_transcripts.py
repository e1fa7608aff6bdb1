"""Verify some entries of each tenant in each round, transcript by transcript, and begin again."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

from spawnmesh_core.errors import MeshError
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.prompt_window import Fence
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.verification import Mismatch
from spawnmesh_transcript.operations.bulk_threads import BulkThreads
from spawnmesh_transcript.operations.verification.report import VerificationReporter
from spawnmesh_transcript.operations.verification.verify import Verified, verify_transcript
from spawnmesh_transcript.store import transcripts as transcript_store
from spawnmesh_transcript.store import verification as verification_store
from spawnmesh_transcript.store.verification import VerifiedUpTo

_ROUND_BYTES = 16 * 1024 * 1024  # Bodies that a round reads, beside its limit of entries.
_ROUND_SESSIONS = 20  # A tenant may have many short transcripts.


class TranscriptVerifier:
    """Verify transcripts by session id, a few entries in each round.

    A restart continues where the database says. A transcript that is not intact is reported, its
    rest is skipped, and the next pass over the tenant reports it again.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        threads: BulkThreads,
        reporter: VerificationReporter,
        stop: asyncio.Event,
        *,
        entries_per_round: int,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._threads = threads
        self._reporter = reporter
        self._stop = stop
        self._entries_per_round = entries_per_round

    async def verify(self, tenant_id: str) -> None:
        """Verify the next entries of the tenant, at most to the end of its last transcript.

        Raises NOT_FOUND for a transcript that was just deleted, and DEPENDENCY_UNAVAILABLE if the
        blob store is needed and unavailable. The next round continues there.
        """
        async with self._database.transaction(tenant_id) as connection:
            start = await verification_store.read_verified(connection, tenant_id)
            session_ids = await _sessions_from(connection, tenant_id, start)
        reached, left = start, _Budget(self._entries_per_round, _ROUND_BYTES)
        try:
            for session_id in session_ids:
                while not (left.is_spent or self._stop.is_set()):
                    reached = await self._advance(Key(tenant_id, session_id), reached, left)
                    if reached.fence is None:
                        break
                else:
                    break
            else:
                if len(session_ids) < _ROUND_SESSIONS:
                    reached = VerifiedUpTo()  # Begin again.
        except MeshError:
            await self._move(tenant_id, start, reached)
            raise
        await self._move(tenant_id, start, reached)

    async def _move(self, tenant_id: str, start: VerifiedUpTo, reached: VerifiedUpTo) -> None:
        if reached != start:
            async with self._database.transaction(tenant_id) as connection:
                await verification_store.put_verified(connection, tenant_id, start, reached)

    async def _advance(self, key: Key, reached: VerifiedUpTo, left: "_Budget") -> VerifiedUpTo:
        """Verify a page of a transcript, report it, and return where to continue."""
        fence = reached.fence if reached.session_id == key.session_id else None
        result = await self._next_page(key, fence, left.entry_count)
        self._reporter.report(key, result)
        if isinstance(result, Mismatch):
            left.entry_count -= 1
            return VerifiedUpTo(key.session_id)
        left.entry_count -= result.entry_count
        left.size_bytes -= result.size_bytes
        return VerifiedUpTo(key.session_id, None if result.is_complete else result.fence)

    async def _next_page(self, key: Key, start: Fence | None, page_rows: int) -> Verified | Mismatch:
        """Verify entries until there is a result, or at least one more is verified.

        The entry of `start` alone may fill a page.
        """
        results = verify_transcript(
            self._database, self._blobs, self._threads, key, start, page_rows=page_rows
        )
        async with aclosing(results):
            async for result in results:
                if isinstance(result, Mismatch) or result.is_complete or result.entry_count:
                    return result
        raise AssertionError("a verification ends with its result")


@dataclass(slots=True)
class _Budget:
    """Entries and bytes of bodies that the round may still read."""

    entry_count: int
    size_bytes: int

    @property
    def is_spent(self) -> bool:
        return self.entry_count <= 0 or self.size_bytes <= 0


async def _sessions_from(connection: Connection, tenant_id: str, start: VerifiedUpTo) -> list[str]:
    """Return the next sessions: the one that was begun, if it is still there, and others."""
    session_ids = []
    if start.fence and await transcript_store.read_transcript(connection, Key(tenant_id, start.session_id)):
        session_ids.append(start.session_id)
    return session_ids + await transcript_store.list_session_ids(
        connection,
        tenant_id,
        after_session_id=start.session_id,
        row_count=_ROUND_SESSIONS - len(session_ids),
    )
