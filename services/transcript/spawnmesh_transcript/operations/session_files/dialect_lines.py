"""Read the lines of session files that have no header of the contract. CPU work only."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.json_text import Object

from spawnmesh_transcript.domain.dialects.reading import Reading, SummaryPart
from spawnmesh_transcript.domain.dialects.recognition import READERS, Dialect
from spawnmesh_transcript.domain.entries import EntryKind, NewEntry
from spawnmesh_transcript.domain.line_parts import LineParts
from spawnmesh_transcript.operations.bodies.message_entries import message_entry
from spawnmesh_transcript.operations.bodies.well_formed import KINDS, serialize
from spawnmesh_transcript.operations.session_files.dialect_bodies import bodies_of
from spawnmesh_transcript.operations.session_files.line_bodies import opaque_of
from spawnmesh_transcript.operations.session_files.line_reader import (
    MAX_IMPORTED_BYTES,
    check_body,
    read_json,
)
from spawnmesh_transcript.operations.session_files.session_file import SessionFile
from spawnmesh_transcript.store.imports import ImportProgress

MAX_COMPACTIONS = 100
"""Compactions that are remembered: the newest one on the branch of the file is looked for."""


def header_without_line(file: SessionFile) -> NewEntry:
    """Return the header of a file that has none."""
    header = pb.Header(session_id=file.session_id, incarnation=file.incarnation)
    body = pb.EntryBody(header=header, source=pb.Source(has_no_line=True))
    return NewEntry(kind=EntryKind.HEADER, body=serialize(body), entry_id=file.header_entry_id)


def read_dialect_line(
    file: SessionFile, text: str, number: int, reached: ImportProgress, known_entry_ids: Collection[str]
) -> tuple[list[NewEntry], ImportProgress]:
    """Return the entries of a line, and the progress after it. Raises Malformed.

    Claude Code writes some lines twice: the second one, with the id of a known entry, changes
    nothing.
    """
    read = READERS[Dialect(reached.dialect)]

    def parts(root: Object) -> LineParts:
        return read(text, root, number, reached.memory)[0].line_parts

    stored, root = read_json(text, mask_secrets=file.mask_secrets, parts=parts)
    reading, memory = read(stored, root, number, reached.memory)
    if reading.source_id and file.entry_id(reading.source_id) in known_entry_ids:
        return [_repeated(file, stored, root, number, reached)], reached
    bodies = _bodies(file, stored, root, reading)
    entries = _entries(file, number, reading, bodies)
    return entries, _advanced(file, replace(reached, memory=memory), reading, entries)


def _bodies(file: SessionFile, line: str, root: Object, reading: Reading) -> list[pb.EntryBody]:
    kept = next((part.first_kept_id for part in reading.parts if isinstance(part, SummaryPart)), "")
    kept_entry_id = file.entry_id(kept) if kept else ""
    bodies = bodies_of(line, root, reading, kept_entry_id, is_exact=True)
    if bodies[0].ByteSize() > MAX_IMPORTED_BYTES:
        bodies = bodies_of(line, root, reading, kept_entry_id, is_exact=False)
    for body in bodies:
        check_body(body, line)
    return bodies


def _entries(
    file: SessionFile, number: int, reading: Reading, bodies: Sequence[pb.EntryBody]
) -> list[NewEntry]:
    """Return the entries of a line, each the parent of the next one. The last one has the id of the
    line: lines after it name this id as their parent.
    """
    parent_id = file.entry_id(reading.parent_id) if reading.parent_id else file.header_entry_id
    entries: list[NewEntry] = []
    for place, body in enumerate(bodies, start=1):
        is_last = place == len(bodies)
        entry_id = file.line_entry_id(number, place)
        if is_last and reading.source_id:
            entry_id = file.entry_id(reading.source_id)
        entries.append(replace(_entry(file, body), entry_id=entry_id, parent_entry_id=parent_id))
        parent_id = entry_id
    return entries


def _entry(file: SessionFile, body: pb.EntryBody) -> NewEntry:
    if body.HasField("message"):
        return message_entry(body.message, body.source, vocabulary=file.token_vocabulary)
    kind = KINDS[body.WhichOneof("kind") or "opaque"]
    return NewEntry(kind=kind, body=serialize(body), token_vocabulary=file.token_vocabulary)


def _advanced(
    file: SessionFile, reached: ImportProgress, reading: Reading, entries: Sequence[NewEntry]
) -> ImportProgress:
    """Return the progress after the line. A line of a side chain, or without an id, is not on the
    branch of the file.
    """
    if reading.leaf_id is None:
        has_message = any(entry.kind is EntryKind.MESSAGE for entry in entries)
        return replace(reached, is_branched=reached.is_branched or has_message)
    compactions = [entry.entry_id for entry in entries if entry.kind is EntryKind.COMPACTION]
    continues = reading.parent_id == reached.newest_source_id and reading.leaf_id == reading.source_id
    return replace(
        reached,
        newest_source_id=reading.source_id,
        leaf_entry_id=file.entry_id(reading.leaf_id) if reading.leaf_id else file.header_entry_id,
        is_branched=reached.is_branched or not continues,
        compaction_ids=(*reached.compaction_ids, *compactions)[-MAX_COMPACTIONS:],
    )


def _repeated(file: SessionFile, line: str, root: Object, number: int, reached: ImportProgress) -> NewEntry:
    """Return a line that the file has already, as an entry that no model reads."""
    body = opaque_of(line, root, "")
    check_body(body, line)
    return NewEntry(
        kind=EntryKind.OPAQUE,
        body=serialize(body),
        entry_id=file.line_entry_id(number),
        parent_entry_id=reached.leaf_entry_id or file.header_entry_id,
    )
