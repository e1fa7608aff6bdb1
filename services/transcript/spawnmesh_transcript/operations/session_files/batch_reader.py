"""Read a batch of a session file's lines into entries. CPU work only."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.ids import IdKind, derived_id
from spawnmesh_core.json_text import NodeBudget, Object, parse_json

from spawnmesh_transcript.domain.entries import EntryKind, NewEntry
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.operations.bodies.message_entries import message_entry
from spawnmesh_transcript.operations.bodies.well_formed import KINDS, LABELS, serialize
from spawnmesh_transcript.operations.session_files.line_bodies import header_of, opaque_of
from spawnmesh_transcript.operations.session_files.line_reader import (
    MAX_LINE_BYTES,
    Line,
    Malformed,
    body_of,
    check_body,
    read_line,
    text_of,
)
from spawnmesh_transcript.store.imports import ImportProgress

IMPORT_SERVICE = "transcript"
"""The writer of the marks on messages off the branch that a file ends on; exports leave these
marks out.
"""

MAX_MALFORMED = 100
"""Malformed lines that are reported; the rest of the file is not read."""


@dataclass(frozen=True, slots=True)
class SessionFile:
    """The session, incarnation and settings that hold for all lines of a file."""

    session_id: str
    incarnation: str
    mask_secrets: bool
    token_vocabulary: Vocabulary = Vocabulary.O200K

    @property
    def header_entry_id(self) -> str:
        return derived_id(IdKind.ENTRY, f"header:{self.session_id}")

    def entry_id(self, source_id: str) -> str:
        """Return the id of an entry of the file, without having read the entry."""
        return derived_id(IdKind.ENTRY, f"entry:{source_id}:{self.session_id}")


def read_lines(
    file: SessionFile, lines: Sequence[bytes], reached: ImportProgress
) -> tuple[ImportProgress, list[tuple[int, NewEntry]]]:
    """Return the progress after the lines, without its bytes, and the entries with their line
    numbers.
    """
    entries: list[tuple[int, NewEntry]] = []
    malformed = list(reached.malformed)
    seen: set[str] = set()
    number = reached.line_count
    for raw in lines:
        number += 1
        if not raw and number > 1:
            continue  # First of all checks: a file may have millions of empty lines.
        try:
            text = _text(raw, is_first=number == 1)
            if not text.strip():
                if number == 1:
                    raise Malformed("is empty; a file begins with its header")
                continue
            entry, reached = _read(file, text, reached, is_first=number == 1)
            if entry.entry_id in seen:
                raise Malformed("has the id of an earlier entry")
        except Malformed as error:
            malformed.append((number, str(error)))
            if len(malformed) >= MAX_MALFORMED:
                break
            continue
        seen.add(entry.entry_id)
        entries.append((number, entry))
    entry_count = reached.entry_count + len(entries)
    return replace(reached, line_count=number, malformed=tuple(malformed), entry_count=entry_count), entries


def _text(raw: bytes, *, is_first: bool) -> str:
    if len(raw) > MAX_LINE_BYTES:
        raise Malformed(f"is longer than {MAX_LINE_BYTES} bytes")
    try:
        return raw.decode("utf-8-sig" if is_first else "utf-8").rstrip("\r")
    except UnicodeDecodeError:
        raise Malformed("is not UTF-8") from None


def _read(
    file: SessionFile, text: str, reached: ImportProgress, *, is_first: bool
) -> tuple[NewEntry, ImportProgress]:
    line = read_line(text, mask_secrets=file.mask_secrets)
    if (line.kind == "session") is not is_first:
        raise Malformed(
            "is a second header" if line.kind == "session" else "is no header; a file begins with one"
        )
    if line.kind == "session":
        header = pb.Header(session_id=file.session_id, incarnation=file.incarnation)
        body = header_of(line.text, line.root, line.source_id, header)
        check_body(body, line)
        return NewEntry(kind=EntryKind.HEADER, body=serialize(body), entry_id=file.header_entry_id), reached
    if line.kind == "message" and not isinstance(line.root.member("message"), Object):
        raise Malformed("is a message without one")
    return _entry(file, line, reached)


def _entry(file: SessionFile, line: Line, reached: ImportProgress) -> tuple[NewEntry, ImportProgress]:
    body = body_of(line, file.entry_id)
    entry_id, parent_id = file.entry_id(line.source_id), line.parent_id
    leaf = text_of(line.root, "targetId") if line.kind == "leaf" else ""
    reached = replace(
        reached,
        newest_source_id=line.source_id,
        leaf_entry_id=file.entry_id(leaf) if leaf else entry_id,
        is_branched=reached.is_branched
        or parent_id != reached.newest_source_id
        or bool(leaf and leaf != parent_id),
    )
    parent_entry_id = file.entry_id(parent_id) if parent_id else file.header_entry_id
    if body.HasField("message"):
        made = message_entry(body.message, body.source, vocabulary=file.token_vocabulary)
    elif body.HasField("label"):
        made = NewEntry(
            kind=EntryKind.LABEL,
            body=serialize(body),
            label=LABELS[body.label.kind],
            target_entry_id=body.label.entry_id,
        )
    else:
        made = NewEntry(kind=KINDS[body.WhichOneof("kind") or "opaque"], body=serialize(body))
    return replace(made, entry_id=entry_id, parent_entry_id=parent_entry_id), reached


def without_lost_labels(entries: Sequence[NewEntry], known_entry_ids: Collection[str]) -> list[NewEntry]:
    """Keep the lines of labels as they are if their targets are neither known nor before them."""
    before = set(known_entry_ids)
    made: list[NewEntry] = []
    for entry in entries:
        is_lost = entry.label is not None and entry.target_entry_id not in before
        made.append(_without_label(entry) if is_lost else entry)
        before.add(entry.entry_id)
    return made


def _without_label(entry: NewEntry) -> NewEntry:
    source = pb.EntryBody.FromString(entry.body).source
    root = parse_json(source.line, NodeBudget(len(source.line)))
    if not isinstance(root, Object):
        raise TypeError("a label is made of an object")
    body = serialize(opaque_of(source.line, root, source.id))
    return replace(entry, kind=EntryKind.OPAQUE, body=body, label=None, target_entry_id="")
