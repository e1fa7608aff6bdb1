"""The searchable texts of an entry, each under the path of its field."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.json_text import List, Node, NodeBudget, NotJson, Object, Scalar, String, parse_json

_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL
)


class FoundText(NamedTuple):
    """A text and the path of its field: the field itself, or the strings and numbers of a JSON
    `document`, after a `name`.
    """

    path: str
    text: str
    document: str | None = None
    name: str = ""

    def byte_offset(self, place: int) -> int:
        """Return the UTF-8 offset in the field of a character of the text, 0 for a document nested
        too deep to be parsed.
        """
        if self.document is None:
            return len(self.text[:place].encode())
        return len(self.document[: self._place_in(self.document, place)].encode())

    def _place_in(self, document: str, place: int) -> int:
        begin = len(self.name) + 1 if self.name else 0
        if self.text[begin:] == document:
            return max(0, place - begin)
        try:
            values = list(_nodes(document, parse_json(document, NodeBudget(len(document)))))
        except NotJson:
            return 0
        if place < begin:
            return next(
                (_place_of(document, node, place) for value, node in values if value.strip() == self.name), 0
            )
        for value, node in values:
            if place <= begin + len(value):
                return _place_of(document, node, place - begin)
            begin += len(value) + 1
        return 0


def texts_in(body: pb.EntryBody) -> list[FoundText]:
    """Return the searchable texts of an entry: of tool calls, and of other JSON, the strings and
    numbers line by line.
    """
    return [found for found in _texts(body) if found.text]


def _texts(body: pb.EntryBody) -> Iterator[FoundText]:
    match body.WhichOneof("kind"):
        case "message":
            yield from _message(body.message, "message")
        case "mirror":
            yield from _message(body.mirror.message, "mirror.message")
        case "system_note":
            yield FoundText("system_note.text", body.system_note.text)
        case "compaction":
            yield FoundText("compaction.summary", body.compaction.summary)
        case "branch_summary":
            yield FoundText("branch_summary.summary", body.branch_summary.summary)
        case "model_change":
            yield FoundText("model_change.model", body.model_change.model)
        case "custom":
            yield FoundText("custom.data_json", _values(body.custom.data_json), body.custom.data_json)
        case "opaque":
            yield FoundText("opaque.entry_json", _values(body.opaque.entry_json), body.opaque.entry_json)


def _message(message: content_pb.Message, path: str) -> Iterator[FoundText]:
    if message.HasField("bash_execution"):
        yield FoundText(f"{path}.bash_execution.command", message.bash_execution.command)
    for index, block in enumerate(message.content):
        at = f"{path}.content[{index}]"
        match block.WhichOneof("block"):
            case "text":
                yield FoundText(f"{at}.text.text", block.text.text)
            case "thinking":
                yield FoundText(f"{at}.thinking.text", block.thinking.text)
            case "tool_call":
                call = block.tool_call
                text = f"{call.name}\n{_values(call.block_json)}"
                yield FoundText(f"{at}.tool_call.block_json", text, call.block_json, call.name)


def _values(document: str) -> str:
    """Return the strings and numbers in a JSON text, one a line; JSON in a string is not opened."""
    if not document:
        return ""
    try:
        root = json.loads(document, strict=False, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return document
    found: list[str] = []
    waiting: list[Any] = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            found.append(value.encode("utf-8", "replace").decode())
        elif isinstance(value, list):
            waiting += reversed(value)
        elif isinstance(value, dict):
            waiting += reversed(value.values())
    return "\n".join(found)


def _nodes(document: str, root: Node) -> Iterator[tuple[str, String | Scalar]]:
    """Yield the same values in the same order as `_values`, with their nodes."""
    waiting: list[Node] = [root]
    while waiting:
        node = waiting.pop()
        match node:
            case String():
                yield node.value, node
            case Scalar() if node.is_number and not document[node.start : node.end].endswith(("y", "N")):
                yield document[node.start : node.end], node
            case List():
                waiting += reversed(node.items)
            case Object():
                waiting += reversed(dict(node.members).values())


def _place_of(document: str, node: String | Scalar, place: int) -> int:
    """Return where in the document a character of a value is written."""
    if isinstance(node, Scalar):
        return node.start + place
    at = node.start + 1
    while (escape := document.find("\\", at, min(at + place, node.end))) >= 0:
        found = _ESCAPE.match(document, escape)
        if found is None:
            break
        place -= escape - at + 1
        at = found.end()
    return at + place
