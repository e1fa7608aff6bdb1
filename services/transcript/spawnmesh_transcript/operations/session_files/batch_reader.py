"""Read a batch of a session file's lines into entries. CPU work only."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.json_text import NodeBudget, Object, parse_json

from spawnmesh_transcript.domain.dialects import openclaw
from spawnmesh_transcript.domain.dialects.members import text_in
from spawnmesh_transcript.domain.dialects.recognition import NAMES, Dialect, recognize
from spawnmesh_transcript.domain.entries import EntryKind, NewEntry
from spawnmesh_transcript.domain.writers import Writer
from spawnmesh_transcript.operations.bodies.message_entries import message_entry
from spawnmesh_transcript.operations.bodies.well_formed import KINDS, LABELS, serialize
from spawnmesh_transcript.operations.session_files.dialect_lines import (
    MAX_COMPACTIONS,
    header_without_line,
    read_dialect_line,
)
from spawnmesh_transcript.operations.session_files.line_bodies import copy_of, header_of, opaque_of
from spawnmesh_transcript.operations.session_files.line_reader import (
    MAX_LINE_BYTES,
    Line,
    Malformed,
    body_of,
    check_body,
    read_json,
    read_line,
)
from spawnmesh_transcript.operations.session_files.session_file import SessionFile
from spawnmesh_transcript.operations.session_files.source_lines import NOT_CUT
from spawnmesh_transcript.store.imports import ImportProgress

IMPORT_SERVICE = "transcript"
IMPORT_WRITER = Writer(service=IMPORT_SERVICE)
"""The writer of the marks on messages off the branch that a file ends on; exports leave these
marks out.
"""

DUPLICATE = "has the id of an earlier entry"

MAX_MALFORMED = 100
"""Malformed lines that are reported; the rest of the file is not read."""


_BOM = "\ufeff"
_BLANK = "blank"
"""The type of the entry of empty lines."""

_TYPE_CHARACTERS = 64


def read_lines(
    file: SessionFile,
    lines: Sequence[bytes],
    reached: ImportProgress,
    *,
    known_entry_ids: Collection[str] = (),
    is_terminated: bool = True,
) -> tuple[ImportProgress, list[tuple[int, NewEntry]]]:
    """Return the progress after the lines, without its bytes, and the entries with their line
    numbers.

    `known_entry_ids` has the ids of earlier entries that lines of Claude Code may repeat. If
    `is_terminated` is not set, the last line is the end of the file and has no line feed.
    """
    entries: list[tuple[int, NewEntry]] = []
    malformed = list(reached.malformed)
    seen = set(known_entry_ids)
    number = reached.line_count
    blank: list[str] = []
    for raw in lines:
        number += 1
        if not raw and number > 1:
            blank.append("")
            continue  # First of all checks: a file may have millions of empty lines.
        try:
            text = _text(raw)
            if number > 1 and not text.strip():
                blank.append(text)
                continue
            entries += _blank_entries(file, number, blank)
            of_line, reached = _read(file, text, number, reached, seen)
            if any(entry.entry_id in seen for entry in of_line):
                raise Malformed(DUPLICATE)
        except Malformed as error:
            malformed.append((number, str(error)))
            if len(malformed) >= MAX_MALFORMED or not reached.dialect:
                break
            continue
        seen |= {entry.entry_id for entry in of_line}
        entries += [(number, entry) for entry in of_line]
        reached = replace(reached, entry_count=reached.entry_count + len(of_line))
    entries += _blank_entries(file, number + 1, blank)
    if entries and not is_terminated:
        entries = _unterminated(entries)
    return replace(reached, line_count=number, malformed=tuple(malformed)), entries


def _text(raw: bytes) -> str:
    if len(raw) > MAX_LINE_BYTES:
        raise Malformed(f"is longer than {MAX_LINE_BYTES} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Malformed("is not UTF-8") from None


def _blank_entries(file: SessionFile, number: int, blank: list[str]) -> list[tuple[int, NewEntry]]:
    """Return the entry of the empty lines before a line, and forget them."""
    if not blank:
        return []
    body = pb.EntryBody(source=pb.Source(line="\n".join(blank), gaps=[NOT_CUT], is_exact=True))
    body.opaque.type, body.opaque.entry_json = _BLANK, "{}"
    first = number - len(blank)
    blank.clear()
    entry_id = file.line_entry_id(first)
    return [(first, NewEntry(kind=EntryKind.OPAQUE, body=serialize(body), entry_id=entry_id))]


def _unterminated(entries: Sequence[tuple[int, NewEntry]]) -> list[tuple[int, NewEntry]]:
    """Mark the entry of the last line."""
    marked = list(entries)
    for place in reversed(range(len(marked))):
        number, entry = marked[place]
        body = pb.EntryBody.FromString(entry.body)
        if not body.source.has_no_line:
            body.source.is_unterminated = True
            marked[place] = (number, replace(entry, body=serialize(body)))
            break
    return marked


def _read(
    file: SessionFile, text: str, number: int, reached: ImportProgress, known_entry_ids: Collection[str]
) -> tuple[list[NewEntry], ImportProgress]:
    """Return the entries of a line, and the progress after it."""
    has_bom = number == 1 and text.startswith(_BOM)
    line = " " + text[1:] if has_bom else text
    header: list[NewEntry] = []
    if number == 1:
        reached = replace(reached, dialect=_dialect_of(line, mask_secrets=file.mask_secrets))
        if not Dialect(reached.dialect).has_header:
            header = [header_without_line(file)]
    if header or not Dialect(reached.dialect).has_header:
        entries, reached = read_dialect_line(file, line, number, reached, known_entry_ids)
    else:
        entry, reached = _read_known(file, line, reached, is_first=number == 1)
        entries = [entry]
    if has_bom:
        entries[0] = _with_bom(entries[0])
    return [*header, *entries], reached


def _dialect_of(line: str, *, mask_secrets: bool) -> Dialect:
    """Recognize the dialect. Raises Malformed for a first line of no dialect."""
    if not line.strip():
        raise Malformed(f"is empty; the first line of a session file of {NAMES} is not")
    try:
        stored, root = read_json(line, mask_secrets=mask_secrets)
    except Malformed as error:
        raise Malformed(f"{error}; a session file of {NAMES} begins with one") from None
    dialect = recognize(stored, root)
    if dialect is None:
        kind = text_in(root, "type")[:_TYPE_CHARACTERS]
        named = f'its type is "{kind}"' if kind else "it has no type"
        raise Malformed(f"is the first line of no known session file: {named}; known are those of {NAMES}")
    return dialect


def _with_bom(entry: NewEntry) -> NewEntry:
    body = pb.EntryBody.FromString(entry.body)
    body.source.line = _BOM + body.source.line[1:]
    return replace(entry, body=serialize(body))


def _read_known(
    file: SessionFile, text: str, reached: ImportProgress, *, is_first: bool
) -> tuple[NewEntry, ImportProgress]:
    """Read a line of a file with a header."""
    index = reached.entry_count if reached.dialect == Dialect.PI_V1 else None
    line = read_line(text, mask_secrets=file.mask_secrets, index=index)
    if (line.kind == "session") is not is_first:
        raise Malformed(
            "is a second header" if line.kind == "session" else "is no header; a file begins with one"
        )
    if line.kind == "session":
        header = pb.Header(session_id=file.session_id, incarnation=file.incarnation)
        body = header_of(line.text, line.root, line.source_id, header)
        check_body(body, line.text)
        return NewEntry(kind=EntryKind.HEADER, body=serialize(body), entry_id=file.header_entry_id), reached
    if line.kind == "message" and not isinstance(line.root.member("message"), Object):
        raise Malformed("is a message without one")
    if reached.dialect == Dialect.PI and openclaw.is_own_line(line.root):
        reached = replace(reached, dialect=Dialect.OPENCLAW)
    return _entry(file, line, reached)


def _body(file: SessionFile, line: Line, reached: ImportProgress) -> pb.EntryBody:
    if reached.dialect != Dialect.SPAWNMESH and openclaw.is_copy(line.root):
        body = copy_of(line.text, line.root, line.source_id)
        check_body(body, line.text)
        return body
    return body_of(line, file.entry_id)


def _entry(file: SessionFile, line: Line, reached: ImportProgress) -> tuple[NewEntry, ImportProgress]:
    body = _body(file, line, reached)
    entry_id, parent_id = file.entry_id(line.source_id), line.parent_id
    leaf = text_in(line.root, "targetId") if line.kind == "leaf" else ""
    is_compaction = body.HasField("compaction")
    reached = replace(
        reached,
        newest_source_id=line.source_id,
        leaf_entry_id=file.entry_id(leaf) if leaf else entry_id,
        is_branched=reached.is_branched
        or parent_id != reached.newest_source_id
        or bool(leaf and leaf != parent_id),
        compaction_ids=(*reached.compaction_ids, *([entry_id] if is_compaction else []))[-MAX_COMPACTIONS:],
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
        kind = KINDS[body.WhichOneof("kind") or "opaque"]
        made = NewEntry(kind=kind, body=serialize(body), token_vocabulary=file.token_vocabulary)
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
    body = opaque_of(source.line, root, source.id)
    body.source.is_unterminated = source.is_unterminated
    return replace(entry, kind=EntryKind.OPAQUE, body=serialize(body), label=None, target_entry_id="")
