"""Finds and reads the bytes of files."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from spawnmesh_postgres.database import Database
from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy

from spawnmesh_attachment_blob.clients.objects import ObjectMissing, ObjectStore
from spawnmesh_attachment_blob.domain.errors import stored_hash_differs
from spawnmesh_attachment_blob.domain.items import StoredFile
from spawnmesh_attachment_blob.domain.ranges import ByteRange, within_file
from spawnmesh_attachment_blob.domain.sets import require_file, require_set
from spawnmesh_attachment_blob.operations.idle_timeout import reader_idle_timeout
from spawnmesh_attachment_blob.store import blobs, sets

_WAIT_SECONDS = 15.0  # The transcript service waits 20 s for a payload.
_RETRY_SECONDS = 5.0
_QUEUED_READS = 1024
_REFUSAL = "this replica reads as many files as it may; call again later"


class FileReader:
    """Reads files. If a `session_id` is given, the reader is a run of that session."""

    def __init__(
        self, database: Database, objects: ObjectStore, *, max_streams: int, idle_seconds: float
    ) -> None:
        self._database = database
        self._objects = objects
        self._idle_seconds = idle_seconds
        self._limiter = FairLimiter(
            LimiterPolicy(
                "reads",
                _REFUSAL,
                max_streams,
                max_waiting=_QUEUED_READS,
                wait_seconds=_WAIT_SECONDS,
                retry_after_seconds=_RETRY_SECONDS,
            )
        )

    async def find(
        self, tenant_id: str, set_id: str, name: str, session_id: str | None
    ) -> tuple[StoredFile, str]:
        """Return the file and its object key.

        Raises NOT_FOUND, ATTACHMENT_SET_STATE, and STORED_HASH_DIFFERS if the blob has no row.
        """
        async with self._database.transaction(tenant_id) as connection:
            found = require_set(await sets.get_set(connection, tenant_id, set_id), set_id, session_id)
            file = require_file(found, name)
            key = await blobs.get_object_key(connection, tenant_id, file.sha256)
        if key is None:  # It was released between the two statements, or the row was lost.
            raise stored_hash_differs(file.sha256)
        return file, key

    async def read(
        self, tenant_id: str, set_id: str, name: str, session_id: str | None, requested: ByteRange
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a range of the file in pieces, one empty piece for an empty range.

        If the range is the complete file, the hash is verified before the last piece. Otherwise
        only the length is. Raises:

        - NOT_FOUND, ATTACHMENT_SET_STATE, STORED_HASH_DIFFERS, S3Failed;
        - INVALID_REQUEST for a range that begins behind the end;
        - POOL_EXHAUSTED if no permit was free within 15 seconds;
        - DEADLINE_EXCEEDED for a reader that takes nothing, or takes it too slowly.
        """
        file, key = await self.find(tenant_id, set_id, name, session_id)
        span = within_file(requested, file.size_bytes)
        idle_timeout = reader_idle_timeout(self._idle_seconds)
        try:
            async with (
                self._limiter.hold(tenant_id),
                aclosing(self._verified(tenant_id, key, file, span)) as pieces,
            ):
                async for piece in pieces:
                    async with idle_timeout:
                        yield piece
                    idle_timeout.refill(len(piece))
        except ObjectMissing:
            # It may have been released in the meantime; then this raises.
            await self.find(tenant_id, set_id, name, session_id)
            raise stored_hash_differs(file.sha256) from None

    async def _verified(
        self, tenant_id: str, key: str, file: StoredFile, span: ByteRange
    ) -> AsyncGenerator[bytes, None]:
        if span.length == 0 and file.size_bytes > 0:  # S3 has no empty ranges.
            yield b""
            return
        async with self._objects.open(
            tenant_id, key, span.offset, 0 if span.covers(file.size_bytes) else span.length
        ) as body:
            held = await body.next_piece()
            read_bytes = len(held)
            while read_bytes <= span.length and (piece := await body.next_piece()):
                yield held
                held = piece
                read_bytes += len(piece)
            is_wrong = span.covers(file.size_bytes) and body.sha256 != file.sha256
            if read_bytes != span.length or is_wrong:
                raise stored_hash_differs(file.sha256)
            yield held
