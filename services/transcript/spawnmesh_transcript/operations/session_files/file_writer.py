"""Write the lines of an exported session file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spawnmesh.transcript.v1 import entry_pb2 as entry_pb

from spawnmesh_transcript.domain.entries import StoredEntry
from spawnmesh_transcript.operations.session_files.batch_reader import IMPORT_SERVICE
from spawnmesh_transcript.operations.session_files.line_writer import line_bytes, line_of
from spawnmesh_transcript.operations.session_files.source_lines import restore_line


@dataclass(frozen=True, slots=True)
class Exported:
    """The state of a file that is being written: the id of its newest entry, and whether its last
    line lacks a line feed.
    """

    newest_id: str = ""
    is_unterminated: bool = False


def write_lines(
    entries: Sequence[StoredEntry],
    bodies: Sequence[entry_pb.EntryBody],
    ids: Mapping[str, str],
    before: Exported,
) -> tuple[list[bytes], Exported]:
    """Return each entry's line with its line feed, and what the file has after them.

    `before` is what it has before the page. An entry that is not in the file has an empty line. The
    last line lacks its line feed if the imported file lacked it; a line after it writes both.
    """
    lines: list[bytes] = []
    for entry, body in zip(entries, bodies, strict=True):
        if is_import_mark(entry, body):
            lines.append(b"")
            continue
        newest_id = exported_id(entry, body) if has_id(body) else before.newest_id
        if body.source.has_no_line:
            before = replace(before, newest_id=newest_id)
            lines.append(b"")
            continue
        if body.source.is_exact:
            data = restore_line(body).encode()
        elif body.HasField("source"):
            data = line_bytes(restore_line(body))
        else:
            data = line_bytes(line_of(entry.entry_id, entry.create_time, body, before.newest_id, ids))
        if before.is_unterminated:
            data = b"\n" + data
        before = Exported(newest_id, body.source.is_unterminated)
        lines.append(data if before.is_unterminated else data + b"\n")
    return lines, before


def exported_id(entry: StoredEntry, body: entry_pb.EntryBody) -> str:
    if body.HasField("header"):
        return ""  # The first entry after a header has no parent.
    return body.source.id if body.HasField("source") else entry.entry_id


def has_id(body: entry_pb.EntryBody) -> bool:
    """Return whether the entry's line has an id. An empty line has none, and a header counts for
    the beginning of the file.
    """
    return body.HasField("header") or not body.HasField("source") or bool(body.source.id)


def is_import_mark(entry: StoredEntry, body: entry_pb.EntryBody) -> bool:
    """Return whether an import wrote this label. The file says the same by its branches."""
    return body.HasField("label") and not body.HasField("source") and entry.writer_service == IMPORT_SERVICE
