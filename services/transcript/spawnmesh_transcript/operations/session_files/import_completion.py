"""Complete an import: mark the messages off the branch on which the file ends, and publish the
transcript.
"""

from dataclasses import replace

from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Connection

from spawnmesh_transcript.domain.entries import EntryKind, Label, NewEntry
from spawnmesh_transcript.domain.refusals import import_offset_differs, transcript_deleted
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.bodies.well_formed import serialize
from spawnmesh_transcript.operations.session_files.batch_reader import IMPORT_WRITER
from spawnmesh_transcript.operations.session_files.session_file import SessionFile
from spawnmesh_transcript.operations.session_files.summary_in_force import put_summary_in_force
from spawnmesh_transcript.store import appends as append_store
from spawnmesh_transcript.store import imports as import_store
from spawnmesh_transcript.store import transcripts as transcript_store
from spawnmesh_transcript.store.imports import ImportProgress

_MARKS_AT_ONCE = 500


async def complete_import(
    connection: Connection, key: Key, file: SessionFile, progress: ImportProgress, vocabulary: Vocabulary
) -> ImportProgress:
    """Mark other branches and publish the transcript.

    Needs `import_store.lock_import`.
    """
    leaf_entry_id = progress.leaf_entry_id
    if progress.is_branched:
        if not await import_store.find_entry_seqs(connection, key, [leaf_entry_id]):
            # An unknown leaf would leave nothing to read.
            leaf_entry_id = file.entry_id(progress.newest_source_id)
        await _mark_other_branches(connection, key, leaf_entry_id)
    await put_summary_in_force(connection, key, progress, leaf_entry_id, vocabulary)
    if not await import_store.complete_import(connection, key, progress):
        raise await lost_import(connection, key)
    return replace(progress, state="COMPLETE")


async def _mark_other_branches(connection: Connection, key: Key, leaf_entry_id: str) -> None:
    off = await import_store.list_messages_off_branch(connection, key, leaf_entry_id)
    for start in range(0, len(off), _MARKS_AT_ONCE):
        marks = [_superseded(entry_id) for entry_id in off[start : start + _MARKS_AT_ONCE]]
        await append_store.write_entries(connection, key, marks, IMPORT_WRITER, is_import=True)


def _superseded(entry_id: str) -> NewEntry:
    label = entry_pb.Label(entry_id=entry_id, kind=entry_pb.LABEL_KIND_SUPERSEDED)
    return NewEntry(
        kind=EntryKind.LABEL,
        body=serialize(entry_pb.EntryBody(label=label)),
        label=Label.SUPERSEDED,
        target_entry_id=entry_id,
    )


async def lost_import(connection: Connection, key: Key) -> Exception:
    """Return the error of a call that lost its import to another call."""
    if await transcript_store.is_deleted(connection, key):
        return transcript_deleted(key.session_id)
    current = await import_store.read_import(connection, key)
    return import_offset_differs(current.byte_count) if current else not_found("import", key.session_id)
