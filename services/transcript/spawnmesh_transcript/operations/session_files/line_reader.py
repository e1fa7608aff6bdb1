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

from spawnmesh_transcript.domain.line_parts import parts_of
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

MAX_ID_CHARACTERS = 1024

_GROWS = re.compile(r"[\x00-\x1f\x85\u2028\u2029]")
"""Characters that a file may have as they are, and an export as an escape, up to six times as
long.
"""

_MOST_GROWTH = 6
_REFERENCES = ("firstKeptEntryId", "fromId")
_LABEL_REFERENCES = ("targetId",)


class Malformed(Exception):
    """A line that cannot be read; the text says why."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line as it may be stored, with its ids as they are in the file."""

    text: str
    root: Object
    kind: str
    source_id: str
    parent_id: str


def read_line(text: str, *, mask_secrets: bool) -> Line:
    """Return the line redacted, and masked if `mask_secrets` is set. Raises Malformed."""
    try:
        stored = redact_line(text, MAX_VALUES) if may_hold_spawn_call(text) else text
        require_few_nodes(stored, MAX_VALUES)
        root = parse_json(stored, NodeBudget(MAX_VALUES))
        if mask_secrets and isinstance(root, Object):
            masked = mask_document(stored, max_values=MAX_VALUES, texts=parts_of(root).texts)
            if masked != stored:
                stored, root = masked, parse_json(masked, NodeBudget(MAX_VALUES))
    except TooManyNodes:
        raise Malformed(f"has more than {MAX_VALUES} JSON values") from None
    except NotJson:
        raise Malformed("is not one JSON object of reasonable depth") from None
    if not isinstance(root, Object):
        raise Malformed("is not one JSON object of reasonable depth")
    line = Line(stored, root, text_of(root, "type"), text_of(root, "id"), text_of(root, "parentId"))
    _check(line)
    return line


def body_of(line: Line, entry_id: Callable[[str], str]) -> pb.EntryBody:
    """Return the entry's body, an opaque one if the contract has no shape for it.

    `entry_id` converts ids of the file to ids of the transcript. Raises Malformed for a line that
    could not be read, or exported.
    """
    names = _LABEL_REFERENCES if line.kind == "label" else _REFERENCES
    referred = next((text for name in names if (text := text_of(line.root, name))), "")
    body = entry_of(line.text, line.root, line.source_id, entry_id(referred) if referred else "")
    check_body(body, line)
    return body


def check_body(body: pb.EntryBody, line: Line) -> None:
    """Raise Malformed for a body that could not be read, or exported."""
    size = body.ByteSize()
    if size > MAX_IMPORTED_BYTES:
        raise Malformed(f"makes an entry of more than {MAX_IMPORTED_BYTES} bytes")
    may_grow = size * _MOST_GROWTH > MAX_LINE_BYTES and _GROWS.search(line.text)
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


def text_of(root: Object, name: str) -> str:
    """Return the string of this name as a column takes it, empty if there is none."""
    child = root.member(name)
    if not isinstance(child, String):
        return ""
    return child.value.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")
