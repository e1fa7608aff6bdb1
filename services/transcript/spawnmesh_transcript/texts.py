"""The texts of an entry that can be found, each under the path of its field."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb


class FoundText(NamedTuple):
    """A text and the path of its field. `is_as_stored` where a place in it is that place in the field."""

    path: str
    text: str
    is_as_stored: bool = True


def texts_in(body: pb.EntryBody) -> list[FoundText]:
    """What can be found of an entry: of a tool's call, and of other JSON, its strings and numbers line by line."""
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
            yield FoundText("custom.data_json", _values(body.custom.data_json), is_as_stored=False)
        case "opaque":
            yield FoundText("opaque.entry_json", _values(body.opaque.entry_json), is_as_stored=False)


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
                yield FoundText(f"{at}.tool_call.block_json", text, is_as_stored=False)


def _values(document: str) -> str:
    """The strings and numbers in a JSON text, one a line; JSON in a string is not opened."""
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
