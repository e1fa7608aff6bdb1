"""The marker that replaces an attachment's content: its hash and its size, never its bytes."""

import hashlib
import json
import re
from base64 import b64decode

from spawnmesh_core.errors import MeshError
from spawnmesh_core.json_text import List, Node, NodeBudget, NotJson, Object, Scalar, String, parse_json
from spawnmesh_core.reasons import Reason

MARKER_KEY = "$redacted"

_SHA256 = re.compile("[0-9a-f]{64}")
_MAX_MARKER_NODES = 100  # A marker has far fewer; a text with more is a file that mentions one.
_MAX_SIZE_DIGITS = 15  # Enough for any size, too few to hide data in it.


def marker_json(content: bytes) -> str:
    """Return the marker for these bytes, as JSON."""
    return json.dumps(
        {MARKER_KEY: "attachment", "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)},
        separators=(",", ":"),
    )


def is_marker(node: Node) -> bool:
    """Return whether the node is a marker as this service writes it, with nothing else in it."""
    if not isinstance(node, Object):
        return False
    members = dict(node.members)
    if len(node.members) != len(members) or set(members) != {MARKER_KEY, "sha256", "bytes"}:
        return False
    what, digest, size = members[MARKER_KEY], members["sha256"], members["bytes"]
    return (
        isinstance(what, String)
        and what.value == "attachment"
        and isinstance(digest, String)
        and _SHA256.fullmatch(digest.value) is not None
        and isinstance(size, Scalar)
        and size.is_number
        and size.end - size.start <= _MAX_SIZE_DIGITS
    )


def content_bytes(text: str, *, is_base64: bool) -> bytes:
    """Return the bytes that a content string stands for.

    They are decoded if the string is valid base64, and otherwise are the text's UTF-8.
    """
    raw = text.encode("utf-8", "surrogatepass")
    if is_base64:
        try:
            return b64decode(b"".join(raw.split()), validate=True)
        except ValueError:
            return raw
    return raw


def is_marker_content(content: str | bytes) -> bool:
    """Return whether a file's content is a marker, whatever its other members are.

    It may be in a JSON string, or alone in a list, and a byte order mark may precede it.
    """
    if isinstance(content, str):
        content = content.encode("utf-8", "surrogatepass")
    # Most content is large and not JSON, so search first. A key may be written with escapes.
    if b"redacted" not in content and b"\\u" not in content:
        return False
    text = content.decode("utf-8", "replace")
    while True:
        try:
            node = parse_json(text.removeprefix("\ufeff"), NodeBudget(_MAX_MARKER_NODES))
        except NotJson:
            return False
        while isinstance(node, List) and len(node.items) == 1:
            [node] = node.items
        if not isinstance(node, String):
            return isinstance(node, Object) and is_marker_object(node)
        text = node.value


def is_marker_object(node: Object) -> bool:
    """Return whether the object has the key of a marker.

    It may stand for a content, for one attachment or for all of them.
    """
    return any(key == MARKER_KEY for key, _ in node.members)


def refuse_marker(content: bytes) -> None:
    """Raise ATTACHMENT_CONTENT_IS_MARKER for content that is a marker.

    A marker that passed as content would become a file, and the agent would read our placeholder
    as its input.
    """
    if is_marker_content(content):
        raise _content_is_marker()


def refuse_marker_object(node: Object) -> None:
    """Raise ATTACHMENT_CONTENT_IS_MARKER for an object that is a marker."""
    if is_marker_object(node):
        raise _content_is_marker()


def _content_is_marker() -> MeshError:
    return MeshError(
        Reason.ATTACHMENT_CONTENT_IS_MARKER,
        "an attachment's content is a redaction marker; hand over the content itself",
    )
