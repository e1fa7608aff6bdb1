"""Store complete lines of a session file, in one transaction with the progress of its import."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import psycopg
from spawnmesh_core.line_chain import LineChain
from spawnmesh_postgres.database import Database

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.entries import NewEntry
from spawnmesh_transcript.domain.large_results import Stub
from spawnmesh_transcript.domain.policy import TranscriptPolicy
from spawnmesh_transcript.domain.refusals import import_malformed, import_offset_differs
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.import_abort import abort_import
from spawnmesh_transcript.operations.payload_uploader import PayloadUploader
from spawnmesh_transcript.operations.session_files.batch_reader import (
    DUPLICATE,
    IMPORT_WRITER,
    MAX_MALFORMED,
    read_lines,
    without_lost_labels,
)
from spawnmesh_transcript.operations.session_files.import_completion import complete_import, lost_import
from spawnmesh_transcript.operations.session_files.import_threads import ImportThreads
from spawnmesh_transcript.operations.session_files.repeated_lines import find_repeated
from spawnmesh_transcript.operations.session_files.session_file import SessionFile
from spawnmesh_transcript.operations.stub_creation import create_stubs
from spawnmesh_transcript.store import appends as append_store
from spawnmesh_transcript.store import imports as import_store
from spawnmesh_transcript.store import tenants as tenant_store
from spawnmesh_transcript.store.appends import ENTRY_ID_KEY
from spawnmesh_transcript.store.imports import ImportProgress


@dataclass(frozen=True, slots=True)
class Importer:
    """The resources of the process that imports use."""

    database: Database
    blobs: BlobStore
    uploader: PayloadUploader
    threads: ImportThreads


@dataclass(frozen=True, slots=True)
class FileImport:
    """The parts of one import call: its session, policy and file."""

    importer: Importer
    key: Key
    policy: TranscriptPolicy
    file: SessionFile


async def store_lines(
    file_import: FileImport, progress: ImportProgress, data: bytes, *, is_last: bool
) -> ImportProgress:
    """Store complete lines, in one transaction with the progress.

    Large payloads get their rows with their entries, as in an append; they are uploaded once the
    import is complete.
    """
    importer, key = file_import.importer, file_import.key
    read = partial(_read, file_import.file, data, progress)
    reached, entries = await importer.threads.read(key.tenant_id, len(data), read)
    if repeated := await find_repeated(importer.database, key, reached, entries):
        reached, entries = await importer.threads.read(
            key.tenant_id, len(data), partial(read, known_entry_ids=repeated)
        )
    if is_last and reached.line_count == 0:
        reached = replace(reached, malformed=((1, "is missing; a file begins with its header"),))
    stubs = await create_stubs(
        importer.database,
        importer.blobs,
        importer.threads.workers,
        key,
        [entry for _, entry in entries],
        file_import.policy,
    )
    batch = _Batch(data, entries, stubs, is_last)
    try:
        return await _store(file_import, progress, reached, batch, finds_duplicates=bool(reached.malformed))
    except psycopg.errors.UniqueViolation as error:
        if error.diag.constraint_name != ENTRY_ID_KEY:
            raise
        return await _store(file_import, progress, reached, batch, finds_duplicates=True)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Lines, and their entries with the numbers of their lines."""

    data: bytes
    entries: Sequence[tuple[int, NewEntry]]
    stubs: Sequence[Stub]
    is_last: bool


async def _store(
    file_import: FileImport,
    progress: ImportProgress,
    reached: ImportProgress,
    batch: _Batch,
    *,
    finds_duplicates: bool,
) -> ImportProgress:
    """Store the entries with the progress, unless a line is malformed.

    Raises UniqueViolation if the transcript has one of the ids and `finds_duplicates` is false.
    """
    importer, key, new = file_import.importer, file_import.key, [entry for _, entry in batch.entries]
    async with importer.database.transaction(key.tenant_id) as connection:
        policy = await tenant_store.read_policy(connection, key.tenant_id)
        if batch.data and policy.settings_version != file_import.policy.settings_version:
            # The next call reads the lines under the policy that holds now.
            raise import_offset_differs(progress.byte_count)
        if not await import_store.lock_import(connection, key, progress.incarnation):
            raise await lost_import(connection, key)
        if finds_duplicates:
            known = await import_store.find_entry_seqs(connection, key, [entry.entry_id for entry in new])
            duplicates = [(number, DUPLICATE) for number, entry in batch.entries if entry.entry_id in known]
            reached = replace(reached, malformed=tuple(sorted((*reached.malformed, *duplicates))))
        if not await import_store.advance_import(connection, key, progress, reached):
            raise await lost_import(connection, key)
        if not reached.malformed and new:
            targets = [entry.target_entry_id for entry in new if entry.label]
            known = await import_store.find_entry_seqs(connection, key, targets) if targets else {}
            new = without_lost_labels(new, known)
            await append_store.write_entries(connection, key, new, IMPORT_WRITER, batch.stubs, is_import=True)
        if batch.is_last and not reached.malformed:
            reached = await complete_import(
                connection, key, file_import.file, reached, file_import.policy.token_vocabulary
            )
    if len(reached.malformed) >= (1 if batch.is_last or not reached.dialect else MAX_MALFORMED):
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
