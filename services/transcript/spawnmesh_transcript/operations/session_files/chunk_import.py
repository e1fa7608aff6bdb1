"""Import the chunks of one call: compare what is stored already, and store the rest in batches of
lines.
"""

from collections.abc import AsyncIterator

from spawnmesh.transcript.v1 import archive_service_pb2 as pb
from spawnmesh_core.errors import invalid, not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Database

from spawnmesh_transcript.domain.line_batches import BATCH_BYTES, first_batch
from spawnmesh_transcript.domain.policy import TranscriptPolicy
from spawnmesh_transcript.domain.refusals import (
    import_malformed,
    tenant_purged,
    transcript_deleted,
    transcript_exists,
    unknown_tenant,
)
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.import_abort import abort_import
from spawnmesh_transcript.operations.session_files.import_prefix import ImportPrefix
from spawnmesh_transcript.operations.session_files.line_reader import MAX_LINE_BYTES
from spawnmesh_transcript.operations.session_files.line_storage import FileImport, Importer, store_lines
from spawnmesh_transcript.operations.session_files.long_line_limiter import LONG_BYTES
from spawnmesh_transcript.operations.session_files.session_file import SessionFile
from spawnmesh_transcript.store import imports as import_store
from spawnmesh_transcript.store import tenants as tenant_store
from spawnmesh_transcript.store import transcripts as transcript_store
from spawnmesh_transcript.store.imports import ImportProgress


async def import_chunks(
    importer: Importer,
    key: Key,
    sent: pb.SentBytes | None,
    requests: AsyncIterator[pb.ImportTranscriptRequest],
) -> ImportProgress:
    """Import the chunks after the spec and return the progress when they end.

    `sent` names the bytes before the first chunk. Raises IMPORT_MALFORMED once nothing of the
    import is left, IMPORT_OFFSET_DIFFERS, IMPORT_CONTENT_DIFFERS, ALREADY_EXISTS, UNKNOWN_TENANT,
    TRANSCRIPT_DELETED, DEADLINE_EXCEEDED for a long line that does not arrive, and NOT_FOUND for an
    import that was removed.
    """
    progress, policy = await _begin(importer.database, key)
    prefix = ImportPrefix(importer.threads, key, progress, sent)
    file = SessionFile(key.session_id, progress.incarnation, policy.mask_secrets, policy.token_vocabulary)
    file_import = FileImport(importer, key, policy, file)
    pending = bytearray()
    async with importer.threads.long_lines.open_slot(key.tenant_id) as slot:
        async for request in requests:
            match request.WhichOneof("message"):
                case "chunk":
                    if request.chunk.offset != prefix.end:
                        raise prefix.misplaced(request.chunk.offset, progress.byte_count)
                    data = await prefix.skip(request.chunk.data)
                    pending += data
                    if len(pending) > MAX_LINE_BYTES or (len(pending) >= BATCH_BYTES and b"\n" in data):
                        async with slot.processing():
                            progress = await _import_pending(file_import, progress, pending)
                    if len(pending) > LONG_BYTES:
                        await slot.acquire()
                case "finish":
                    prefix.finish()
                    if progress.state != "COMPLETE":
                        async with slot.processing():
                            progress = await _import_pending(file_import, progress, pending, is_last=True)
                        importer.uploader.start(key)
                    return progress
                case _:
                    raise invalid("spec", "comes once")
        if progress.state != "COMPLETE":
            async with slot.processing():
                progress = await _import_pending(file_import, progress, pending)
        return progress


async def _begin(database: Database, key: Key) -> tuple[ImportProgress, TranscriptPolicy]:
    """Return the session's import, a new one if it has none, and the policy for its lines."""
    async with database.transaction(key.tenant_id) as connection:
        if not await tenant_store.enter_tenant(connection, key.tenant_id):
            raise tenant_purged()
        policy = await tenant_store.find_policy(connection, key.tenant_id)
        if policy is None:
            raise unknown_tenant()
        if not await import_store.begin_import(connection, key, incarnation=new_id(IdKind.INCARNATION)):
            if await transcript_store.is_deleted(connection, key):
                raise transcript_deleted(key.session_id)
            if await import_store.read_import(connection, key) is None:
                raise transcript_exists(key.session_id)
        progress = await import_store.read_import(connection, key)
    if progress is None:
        raise not_found("import", key.session_id)
    if progress.state == "ABORTED":
        await abort_import(database, key, progress.incarnation)
        return await _begin(database, key)
    return progress, policy


async def _import_pending(
    file_import: FileImport, progress: ImportProgress, pending: bytearray, *, is_last: bool = False
) -> ImportProgress:
    """Store the complete lines of the pending bytes in batches, and remove them from `pending`.

    The last line of a file may lack its line feed. The import completes in the transaction that
    stores it: no call can resume within a line.
    """
    end = len(pending) if is_last else pending.rfind(b"\n") + 1
    if len(pending) - end > MAX_LINE_BYTES:
        await abort_import(file_import.importer.database, file_import.key, progress.incarnation)
        number = progress.line_count + pending.count(b"\n") + 1
        raise import_malformed(((number, f"is longer than {MAX_LINE_BYTES} bytes"),))
    has_more = end > 0 or is_last
    while has_more:
        data = first_batch(pending, end)
        del pending[: len(data)]
        end -= len(data)
        has_more = end > 0
        progress = await store_lines(file_import, progress, data, is_last=is_last and not has_more)
    return progress
