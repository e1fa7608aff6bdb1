"""ImportTranscript.

Imports a file in chunks: first the spec, then the chunks in order, then finish.
"""

import re
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, replace
from functools import partial

from spawnmesh.transcript.v1 import archive_service_pb2 as pb
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh_core.errors import invalid, not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.line_chain import LineChain
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.entries import EntryKind, Label, NewEntry
from spawnmesh_transcript.domain.policy import TranscriptPolicy
from spawnmesh_transcript.domain.refusals import (
    import_malformed,
    import_offset_differs,
    tenant_purged,
    transcript_deleted,
    transcript_exists,
    unknown_tenant,
)
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.bodies.well_formed import serialize
from spawnmesh_transcript.operations.import_abort import abort_import
from spawnmesh_transcript.operations.payload_uploader import PayloadUploader
from spawnmesh_transcript.operations.session_files.batch_reader import (
    DUPLICATE,
    IMPORT_SERVICE,
    MAX_MALFORMED,
    read_lines,
    without_lost_labels,
)
from spawnmesh_transcript.operations.session_files.import_prefix import ImportPrefix
from spawnmesh_transcript.operations.session_files.import_threads import ImportThreads
from spawnmesh_transcript.operations.session_files.line_reader import MAX_LINE_BYTES
from spawnmesh_transcript.operations.session_files.long_line_limiter import LONG_BYTES
from spawnmesh_transcript.operations.session_files.repeated_lines import find_repeated
from spawnmesh_transcript.operations.session_files.session_file import SessionFile
from spawnmesh_transcript.operations.session_files.summary_in_force import put_summary_in_force
from spawnmesh_transcript.operations.stub_creation import create_stubs
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_key
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import imports as import_store
from spawnmesh_transcript.store import payloads as payload_store
from spawnmesh_transcript.store import planner
from spawnmesh_transcript.store import tenants as tenant_store
from spawnmesh_transcript.store import transcripts as transcript_store
from spawnmesh_transcript.store.imports import ImportProgress

_BATCH_BYTES = 512 * 1024
_SOME_LINES = re.compile(rb"(?:[^\n]*\n){1,5000}")
"""The most lines of a batch: each costs something by itself, also an empty one."""

_MARKS_AT_ONCE = 500
_STATES = {"IMPORTING": pb.IMPORT_STATE_IMPORTING, "COMPLETE": pb.IMPORT_STATE_COMPLETE}


@dataclass(frozen=True, slots=True)
class Importer:
    """The resources of the process that imports use."""

    database: Database
    blobs: BlobStore
    uploader: PayloadUploader
    threads: ImportThreads


@dataclass(frozen=True, slots=True)
class _FileImport:
    """The parts of one import call: its session, policy and file."""

    importer: Importer
    key: Key
    policy: TranscriptPolicy
    file: SessionFile


async def import_transcript(
    requests: AsyncIterator[pb.ImportTranscriptRequest], caller: Caller, deps: Dependencies
) -> pb.ImportTranscriptResponse:
    """Import a session file that arrives in chunks.

    It becomes a transcript as a whole, or not at all.
    """
    first = await anext(requests, None)
    if first is None or not first.HasField("spec"):
        raise invalid("spec", "comes first")
    key = parse_key(first.spec.session_id, caller)
    sent = first.spec.sent if first.spec.HasField("sent") else None
    importer = Importer(deps.database, deps.blobs, deps.uploader, deps.import_threads)
    progress = await import_chunks(importer, key, sent, requests)
    if progress.state == "COMPLETE":
        deps.notifier.transcript_changed(key)
    return pb.ImportTranscriptResponse(
        state=_STATES[progress.state],
        durable_bytes=progress.byte_count,
        line_count=progress.line_count,
        entry_count=progress.entry_count,
        dialect=pb.SessionFileDialect.Value(f"SESSION_FILE_DIALECT_{progress.dialect or 'UNSPECIFIED'}"),
    )


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
    file_import = _FileImport(importer, key, policy, file)
    pending = bytearray()
    async with importer.threads.long_lines.open_slot(key.tenant_id) as slot:
        async for request in requests:
            match request.WhichOneof("message"):
                case "chunk":
                    if request.chunk.offset != prefix.end:
                        raise prefix.misplaced(request.chunk.offset, progress.byte_count)
                    data = await prefix.skip(request.chunk.data)
                    pending += data
                    if len(pending) > MAX_LINE_BYTES or (len(pending) >= _BATCH_BYTES and b"\n" in data):
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
    file_import: _FileImport, progress: ImportProgress, pending: bytearray, *, is_last: bool = False
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
        data = _batch(pending, end)
        del pending[: len(data)]
        end -= len(data)
        has_more = end > 0
        progress = await _store_lines(file_import, progress, data, is_last=is_last and not has_more)
    return progress


def _batch(pending: bytearray, end: int) -> bytes:
    """Return the first lines up to `end`: at least one, however long, and the last one without its
    line feed.
    """
    limit = min(end, _BATCH_BYTES)
    found = _SOME_LINES.match(pending, 0, limit)
    size = found.end() if found else pending.find(b"\n", limit, end) + 1
    if limit == end and pending.find(b"\n", size, end) < 0:
        size = end
    with memoryview(pending) as view:  # A slice of the bytearray itself would be one copy more.
        return bytes(view[: size or end])


async def _store_lines(
    file_import: _FileImport, progress: ImportProgress, data: bytes, *, is_last: bool
) -> ImportProgress:
    """Store complete lines, in one transaction with the progress.

    Large payloads get their rows with their entries, as in an append; they are uploaded once the
    import is complete.
    """
    importer, key = file_import.importer, file_import.key
    read = partial(_read, file_import.file, data, progress)
    reached, entries = await importer.threads.run_in_thread(key.tenant_id, read)
    if repeated := await find_repeated(importer.database, key, reached, entries):
        reached, entries = await importer.threads.run_in_thread(
            key.tenant_id, partial(read, known_entry_ids=repeated)
        )
    if is_last and reached.line_count == 0:
        reached = replace(reached, malformed=((1, "is missing; a file begins with its header"),))
    new = [entry for _, entry in entries]
    stubs = await create_stubs(importer.database, importer.blobs, key, new, file_import.policy)
    async with importer.database.transaction(key.tenant_id) as connection:
        policy = await tenant_store.read_policy(connection, key.tenant_id)
        if data and policy.settings_version != file_import.policy.settings_version:
            # The next call reads the lines under the policy that holds now.
            raise import_offset_differs(progress.byte_count)
        await planner.keep_index_order(connection)
        if not await import_store.lock_import(connection, key, progress.incarnation):
            raise await _lost(connection, key)
        known = await import_store.find_entry_seqs(connection, key, [entry.entry_id for entry in new])
        duplicates = tuple((number, DUPLICATE) for number, entry in entries if entry.entry_id in known)
        reached = replace(reached, malformed=tuple(sorted((*reached.malformed, *duplicates))))
        if not await import_store.advance_import(connection, key, progress, reached):
            raise await _lost(connection, key)
        if not reached.malformed and new:
            targets = [entry.target_entry_id for entry in new if entry.label]
            known = await import_store.find_entry_seqs(connection, key, targets) if targets else {}
            new = without_lost_labels(new, known)
            head = await entry_store.write_entries(connection, key, new, service=IMPORT_SERVICE)
            if stubs:
                await payload_store.insert_stubs(connection, key, stubs, first_seq=head.seq - len(new) + 1)
        if is_last and not reached.malformed:
            reached = await _complete(connection, file_import, reached)
    if len(reached.malformed) >= (1 if is_last or not reached.dialect else MAX_MALFORMED):
        await abort_import(importer.database, key, progress.incarnation)
        raise import_malformed(reached.malformed[:MAX_MALFORMED])
    return reached


def _read(
    file: SessionFile, data: bytes, progress: ImportProgress, known_entry_ids: Collection[str] = ()
) -> tuple[ImportProgress, list[tuple[int, NewEntry]]]:
    """Return the progress after the bytes, and their entries with the numbers of their lines."""
    lines = data.removesuffix(b"\n").split(b"\n") if data else []
    reached, entries = read_lines(
        file, lines, progress, known_entry_ids=known_entry_ids, is_terminated=data.endswith(b"\n")
    )
    chain = LineChain(progress.line_chain)
    chain.update(data)
    return replace(reached, byte_count=progress.byte_count + len(data), line_chain=chain.value), entries


async def _lost(connection: Connection, key: Key) -> Exception:
    """Return the error of a call that lost its import to another call."""
    if await transcript_store.is_deleted(connection, key):
        return transcript_deleted(key.session_id)
    current = await import_store.read_import(connection, key)
    return import_offset_differs(current.byte_count) if current else not_found("import", key.session_id)


async def _complete(
    connection: Connection, file_import: _FileImport, progress: ImportProgress
) -> ImportProgress:
    """Mark other branches and publish the transcript.

    Needs `keep_index_order` and `import_store.lock_import`.
    """
    key = file_import.key
    leaf_entry_id = progress.leaf_entry_id
    if progress.is_branched:
        if not await import_store.find_entry_seqs(connection, key, [leaf_entry_id]):
            # An unknown leaf would leave nothing to read.
            leaf_entry_id = file_import.file.entry_id(progress.newest_source_id)
        await _mark_other_branches(connection, key, leaf_entry_id)
    await put_summary_in_force(connection, key, progress, leaf_entry_id, file_import.policy.token_vocabulary)
    if not await import_store.complete_import(connection, key, progress):
        raise await _lost(connection, key)
    return replace(progress, state="COMPLETE")


async def _mark_other_branches(connection: Connection, key: Key, leaf_entry_id: str) -> None:
    off = await import_store.list_messages_off_branch(connection, key, leaf_entry_id)
    for start in range(0, len(off), _MARKS_AT_ONCE):
        marks = [_superseded(entry_id) for entry_id in off[start : start + _MARKS_AT_ONCE]]
        await entry_store.write_entries(connection, key, marks, service=IMPORT_SERVICE)


def _superseded(entry_id: str) -> NewEntry:
    label = entry_pb.Label(entry_id=entry_id, kind=entry_pb.LABEL_KIND_SUPERSEDED)
    return NewEntry(
        kind=EntryKind.LABEL,
        body=serialize(entry_pb.EntryBody(label=label)),
        label=Label.SUPERSEDED,
        target_entry_id=entry_id,
    )
