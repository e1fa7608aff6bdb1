"""Read a line of a session file within limits that appends keep as well. CPU work only."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.json_text import (
    MAX_NODES,
    NodeBudget,
    NotJson,
    Object,
    Scalar,
    String,
    TooManyNodes,
    parse_json,
    require_few_nodes,
)
from spawnmesh_core.secrets import mask_document
from spawnmesh_core.spawn_calls import may_hold_spawn_call

from spawnmesh_transcript.domain.dialects import pi
from spawnmesh_transcript.domain.dialects.members import MAX_ID_CHARACTERS, text_in
from spawnmesh_transcript.domain.line_parts import LineParts, parts_of
from spawnmesh_transcript.domain.redact import redact_line
from spawnmesh_transcript.operations.session_files.line_bodies import entry_of
from spawnmesh_transcript.operations.session_files.line_writer import line_bytes
from spawnmesh_transcript.operations.session_files.source_lines import restore_line

MAX_LINE_BYTES = 24 * 1024 * 1024
"""Limit of a line, and of the line that an export writes for an entry, with images as base64."""

MAX_BODY_BYTES = 16 * 1024 * 1024 - 64 * 1024
"""Limit of an appended body: one message takes it with the other fields, unless the message limit
is set lower.
"""

MAX_IMPORTED_BYTES = MAX_BODY_BYTES + 32 * 1024
"""Limit of an imported body with the rest of its line, its ids and its spelling."""

MAX_VALUES = 2 * MAX_NODES + 4096
"""JSON values of a line: its own, and twice those of an entry, since arguments may stand beside
the provider's block that has them as well.
"""

_GROWS = re.compile(r"[\x00-\x1f\x85\u2028\u2029]")
"""Characters that a file may have as they are, and an export as an escape, up to six times as
long.
"""

_MOST_GROWTH = 6
_NO_OBJECT = "is not one JSON object of reasonable depth"
_REFERENCES = ("firstKeptEntryId", "fromId")
_LABEL_REFERENCES = ("targetId",)


class Malformed(Exception):
    """A line that cannot be read; the text says why."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line as it may be stored, with its ids as they are in the file.

    `referred_id` is the entry that a summary or a label refers to, empty for none.
    """

    text: str
    root: Object
    kind: str
    source_id: str
    parent_id: str
    referred_id: str


def read_json(
    text: str, *, mask_secrets: bool, parts: Callable[[Object], LineParts] = parts_of
) -> tuple[str, Object]:
    """Return the line redacted, and masked if `mask_secrets` is set, with its root. Raises
    Malformed.

    `parts` finds the texts of the line, which are not searched as JSON, and its calls.
    """
    try:
        stored = redact_line(text, MAX_VALUES, parts) if may_hold_spawn_call(text) else text
        require_few_nodes(stored, MAX_VALUES)
        root = parse_json(stored, NodeBudget(MAX_VALUES))
        if mask_secrets and isinstance(root, Object):
            masked = mask_document(stored, max_values=MAX_VALUES, texts=parts(root).texts)
            if masked != stored:
                stored, root = masked, parse_json(masked, NodeBudget(MAX_VALUES))
    except TooManyNodes:
        raise Malformed(f"has more than {MAX_VALUES} JSON values") from None
    except NotJson:
        raise Malformed(_NO_OBJECT) from None
    if not isinstance(root, Object):
        raise Malformed(_NO_OBJECT)
    return stored, root


def read_line(text: str, *, mask_secrets: bool, index: int | None = None) -> Line:
    """Return the line, redacted and masked as `read_json` does. Raises Malformed.

    `index` counts the entries before it, if its file may have lines without ids.
    """
    stored, root = read_json(text, mask_secrets=mask_secrets)
    kind, source_id, parent_id = text_in(root, "type"), text_in(root, "id"), text_in(root, "parentId")
    names = _LABEL_REFERENCES if kind == "label" else _REFERENCES
    referred_id = next((found for name in names if (found := text_in(root, name))), "")
    if index and pi.lacks_ids(root):
        source_id, parent_id = pi.positional_id(index), pi.positional_id(index - 1)
        referred_id = pi.positional_id(pi.first_kept_index(stored, root))
    line = Line(stored, root, kind, source_id, parent_id, referred_id)
    _check(line)
    return line


def body_of(line: Line, entry_id: Callable[[str], str]) -> pb.EntryBody:
    """Return the entry's body, an opaque one if the contract has no shape for it.

    `entry_id` converts ids of the file to ids of the transcript. A line that would be too large
    byte for byte keeps its values. Raises Malformed for a line that could not be read, or exported.
    """
    referred = entry_id(line.referred_id) if line.referred_id else ""
    body = entry_of(line.text, line.root, line.source_id, referred)
    if body.ByteSize() > MAX_IMPORTED_BYTES:
        body = entry_of(line.text, line.root, line.source_id, referred, is_exact=False)
    check_body(body, line.text)
    return body


def check_body(body: pb.EntryBody, text: str) -> None:
    """Raise Malformed for the body of a line that could not be read, or exported."""
    size = body.ByteSize()
    if size > MAX_IMPORTED_BYTES:
        raise Malformed(f"makes an entry of more than {MAX_IMPORTED_BYTES} bytes")
    if body.source.is_exact:
        return
    may_grow = size * _MOST_GROWTH > MAX_LINE_BYTES and _GROWS.search(text)
    if may_grow and len(line_bytes(restore_line(body))) > MAX_LINE_BYTES:
        raise Malformed(f"is longer than {MAX_LINE_BYTES} bytes once its control characters are escaped")


def _check(line: Line) -> None:
    if not line.kind:
        raise Malformed("has no type")
    if not line.source_id:
        raise Malformed("has no id")
    parent = line.root.member("parentId")
    if not (
        parent is None or isinstance(parent, String) or (isinstance(parent, Scalar) and not parent.is_number)
    ):
        raise Malformed("has a parentId that is no id")
    if max(len(line.source_id), len(line.parent_id)) > MAX_ID_CHARACTERS:
        raise Malformed(f"has an id of more than {MAX_ID_CHARACTERS} characters")
