"""Read session files as an import does, without a database."""

from typing import Any

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_transcript.domain.entries import NewEntry
from spawnmesh_transcript.operations.session_files.batch_reader import read_lines
from spawnmesh_transcript.operations.session_files.session_file import SessionFile
from spawnmesh_transcript.store.imports import ImportProgress

from tests.support.transcript.dialects import file_of

FILE = SessionFile(new_id(IdKind.SESSION), "i", mask_secrets=False)


def read_file(lines: list[Any], file: SessionFile = FILE) -> tuple[ImportProgress, list[NewEntry]]:
    """Return the progress after these lines, and their entries."""
    data = file_of(lines)
    progress, entries = read_lines(file, data.removesuffix(b"\n").split(b"\n"), ImportProgress())
    return progress, [entry for _, entry in entries]


def branch_of(progress: ImportProgress, entries: list[NewEntry]) -> list[NewEntry]:
    """Return the entries on the branch on which the file ends, oldest first."""
    by_id = {entry.entry_id: entry for entry in entries}
    found: list[NewEntry] = []
    entry_id = progress.leaf_entry_id
    while entry_id in by_id:
        found.append(by_id[entry_id])
        entry_id = by_id[entry_id].parent_entry_id
    return found[::-1]


def described(entry: NewEntry) -> str:
    """Return the entry's kind, and what is in it, in one line."""
    body = pb.EntryBody.FromString(entry.body)
    kind = body.WhichOneof("kind") or ""
    match kind:
        case "message":
            return " ".join([entry.role or "", *map(_described_block, body.message.content)]).lower()
        case "mirror":
            return " ".join(["mirror", *map(_described_block, body.mirror.message.content)])
        case "compaction":
            return f"compaction {body.compaction.summary}"
        case "opaque":
            return f"opaque {body.opaque.type}"
        case _:
            return kind


def _described_block(block: Any) -> str:
    match block.WhichOneof("block"):
        case "text":
            return str(block.text.text)
        case "thinking":
            return f"({block.thinking.text}|{block.thinking.signature})"
        case "tool_call":
            return f"{block.tool_call.name}:{block.tool_call.tool_call_id}"
        case _:
            return f"{block.image.mime_type}:{len(block.image.data)}"
