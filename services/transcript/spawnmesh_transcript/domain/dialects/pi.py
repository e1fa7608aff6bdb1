"""Session files of pi: `~/.pi/agent/sessions/<folder>/<time>_<id>.jsonl`.

They have a header and the types of lines that the contract knows. Lines of version 1 have no ids:
each follows the one before it, and a compaction names the first entry that it keeps by its index,
the header being entry 0.
"""

from spawnmesh_core.ids import IdKind, is_id
from spawnmesh_core.json_text import Object

from spawnmesh_transcript.domain.dialects.members import scalar_in, string_in, text_in

_FIRST_VERSION = "1"


def begins(root: Object) -> bool:
    """Return whether this is the header of a session file, also of one that an export wrote."""
    return text_in(root, "type") == "session"


def is_own_export(header: Object) -> bool:
    """Return whether ExportTranscript wrote the file of this header."""
    return is_id(IdKind.SESSION, text_in(header, "id"))


def is_first_version(line: str, header: Object) -> bool:
    return scalar_in(line, header, "version") in ("", _FIRST_VERSION)


def lacks_ids(root: Object) -> bool:
    """Return whether this is a line of version 1."""
    return string_in(root, "id") is None


def positional_id(index: int) -> str:
    """Return the id of the entry at this index, empty for the header."""
    return f"#{index}" if index > 0 else ""


def first_kept_index(line: str, root: Object) -> int:
    """Return the index of the first entry that a compaction of version 1 keeps, 0 for none."""
    written = scalar_in(line, root, "firstKeptEntryIndex")
    return int(written) if written.isdigit() and len(written) < 10 else 0
