"""Fingerprints of transcript entries: two entries that say the same have the same one."""

import hashlib
import json
import re
from typing import Any

from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, ContentBlock, Message
from spawnmesh.transcript.v1.entry_pb2 import LABEL_KIND_SUPERSEDED, Entry, EntryBody
from spawnmesh_core.ids import IdKind

_DIGEST_BYTES = 16
_ARGUMENT_KEYS = ("arguments", "input", "args")
_CALL_IDS = ("id", "toolCallId", "tool_call_id", "call_id")
_MESH_ID = re.compile(rf"(?:{'|'.join(IdKind)})_[0-7][0-9a-hjkmnp-tv-z]{{25}}")
_MANIFEST_HASH = re.compile(r'(\.manifest\.json[^{}]{1,200}?sha256[\\": ]+)[0-9a-f]{64}')
"""The manifest of attached files has the id of their set, and a list of files has its hash."""


class Fingerprints:
    """The fingerprints of the entries of one transcript, in their order.

    They depend on the kind of entry, and of a message on its role, texts, images, commands, tool
    calls with their arguments, and results. They do not depend on what differs between any two
    sessions, or on how an answer came about:

    - ids and times. A result refers to its call by its place among the calls of the turn. In texts,
      an id of the mesh counts as any other of its kind, by the order of the ids in the entry, and
      the hash of a manifest, which has such an id, as any other.
    - models, thinking, tokens and cost. Arguments are compared as JSON, whatever the shape of the
      provider's block is.
    """

    def __init__(self) -> None:
        self._calls: list[str] = []

    def of(self, entry: Entry) -> bytes | None:
        """Return the fingerprint of the next entry, or None for one that says nothing.

        Nothing is said by the header, a change of the model, and the label of the accepted answer.
        """
        parts = self._parts(entry.body)
        if parts is None:
            return None
        seen: dict[str, int] = {}
        text = _MESH_ID.sub(
            lambda found: f"{found[0][:4]}{seen.setdefault(found[0], len(seen))}",
            _MANIFEST_HASH.sub(r"\1", json.dumps(parts, sort_keys=True)),
        )
        return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()

    def _parts(self, body: EntryBody) -> list[Any] | None:
        kind = body.WhichOneof("kind")
        match kind:
            case "header" | "model_change":
                return None
            case "label":
                return [kind] if body.label.kind == LABEL_KIND_SUPERSEDED else None
            case "message":
                return [kind, *self._message(body.message)]
            case "mirror":
                return [kind, body.mirror.destination, *self._message(body.mirror.message)]
            case "system_note":
                return [kind, body.system_note.topic, body.system_note.text]
            case "compaction":
                return [kind, body.compaction.summary]
            case "branch_summary":
                return [kind, body.branch_summary.summary]
            case "custom":
                return [kind, body.custom.custom_type, _parsed(body.custom.data_json)]
            case "opaque":
                return [kind, body.opaque.type, _parsed(body.opaque.entry_json)]
            case _:  # A kind of a newer service.
                return ["unknown", body.SerializeToString(deterministic=True).hex()]

    def _message(self, message: Message) -> list[Any]:
        if message.role == ROLE_ASSISTANT:  # The results of its calls come before its next message.
            self._calls = [
                block.tool_call.tool_call_id for block in message.content if block.HasField("tool_call")
            ]
        command: list[Any] = []
        if message.HasField("bash_execution"):
            ran = message.bash_execution
            exit_code = ran.exit_code if ran.HasField("exit_code") else None
            command = [ran.command, exit_code, ran.is_cancelled, ran.is_truncated]
        return [
            message.role, message.custom_type, message.tool_name, message.is_error,
            self._place(message.tool_call_id), command,
            [_block(block) for block in message.content if not block.HasField("thinking")],
        ]  # fmt: skip

    def _place(self, tool_call_id: str) -> int:
        return self._calls.index(tool_call_id) if tool_call_id in self._calls else -1


def call_arguments(block_json: str) -> str:
    """Return the arguments of a tool call in JSON; the complete block if they are not there."""
    try:
        block = json.loads(block_json)
        found = next(block[key] for key in _ARGUMENT_KEYS if key in block)
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    except (ValueError, RecursionError, TypeError, StopIteration):
        return block_json


def _block(block: ContentBlock) -> list[Any]:
    kind = block.WhichOneof("block")
    match kind:
        case "text":
            return [kind, block.text.text]
        case "tool_call":
            return [kind, block.tool_call.name, _arguments(block.tool_call.block_json)]
        case "image":
            return [kind, block.image.mime_type, hashlib.sha256(block.image.data).hexdigest()]
        case _:
            return ["unknown", block.SerializeToString(deterministic=True).hex()]


def _arguments(block_json: str) -> Any:
    """Return what the arguments of a call say; the block without its id if they are not there."""
    block = _parsed(block_json)
    if not isinstance(block, dict):
        return block
    for key in _ARGUMENT_KEYS:
        if key in block:
            found = block[key]
            return _parsed(found) if isinstance(found, str) else found
    return {key: value for key, value in block.items() if key not in _CALL_IDS}


def _parsed(text: str) -> Any:
    """Return the JSON value whose numbers keep their digits; the text itself if it is no JSON."""
    try:
        value = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_number)
        json.dumps(value)  # A depth that can be read may be too much to be written.
    except (ValueError, RecursionError):
        return text
    return value


def _number(digits: str) -> dict[str, str]:
    return {"": digits}
