"""Makes what came into what is stored: redacted, trimmed, counted, serialized. Work for the processor only."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import invalid

from spawnmesh_transcript.domain.entries import EntryKind, Label, NewEntry
from spawnmesh_transcript.domain.json_text import NotJson
from spawnmesh_transcript.domain.redact import redact_block
from spawnmesh_transcript.domain.turns import Role
from spawnmesh_transcript.synthetic import is_synthetic_result
from spawnmesh_transcript.tokens import IMAGE_TOKEN_COUNT, count_tokens

_INLINE_BYTES = 32 * 1024
"""Up to here preparing takes about a millisecond and stays on the event loop; a thread costs more than that."""

_ROLES = {
    content_pb.ROLE_USER: Role.USER,
    content_pb.ROLE_ASSISTANT: Role.ASSISTANT,
    content_pb.ROLE_TOOL_RESULT: Role.TOOL_RESULT,
}
_LABELS = {pb.LABEL_KIND_SUPERSEDED: Label.SUPERSEDED, pb.LABEL_KIND_FINAL: Label.FINAL}


@dataclass(frozen=True, slots=True)
class Prepared:
    """Entries ready to be stored, and the hash of what came in: equal for equal entries, whatever is redacted from them."""

    entries: tuple[NewEntry, ...]
    content_hash: bytes


async def prepare(bodies: Sequence[pb.EntryBody]) -> Prepared:
    """Prepares the entries of one append, in a thread where that takes long.

    Raises INVALID_REQUEST for what cannot be stored, with the path of the field, and ATTACHMENT_CONTENT_IS_MARKER.
    """
    if sum(body.ByteSize() for body in bodies) <= _INLINE_BYTES:
        return _prepare(bodies)
    return await asyncio.to_thread(_prepare, bodies)


def message_entry(message: content_pb.Message) -> NewEntry:
    """A message that is already as it is to be stored."""
    calls = [block.tool_call.tool_call_id.strip() for block in message.content if block.HasField("tool_call")]
    role = _ROLES[message.role]
    return NewEntry(
        kind=EntryKind.MESSAGE,
        body=serialize(pb.EntryBody(message=message)),
        token_count=sum(_block_token_count(block) for block in message.content),
        role=role,
        calls=tuple(dict.fromkeys(calls)) if role is Role.ASSISTANT else (),
        answers=message.tool_call_id.strip() if role is Role.TOOL_RESULT else "",
        is_synthetic=role is Role.TOOL_RESULT and is_synthetic_result(message),
    )


def serialize(body: pb.EntryBody) -> bytes:
    """The bytes that are stored and hashed."""
    return body.SerializeToString(deterministic=True)


def _prepare(bodies: Sequence[pb.EntryBody]) -> Prepared:
    content = hashlib.sha256()
    entries: list[NewEntry] = []
    for index, body in enumerate(bodies):
        given = serialize(body)
        content.update(len(given).to_bytes(8))
        content.update(given)
        entries.append(_entry(body, f"entries[{index}]"))
    return Prepared(tuple(entries), content.digest())


def _entry(body: pb.EntryBody, path: str) -> NewEntry:
    match body.WhichOneof("kind"):
        case "message":
            return message_entry(_storable(body.message, f"{path}.message"))
        case "system_note":
            return NewEntry(kind=EntryKind.NOTE, body=serialize(body), token_count=count_tokens(body.system_note.text))
        case "label":
            _check_text(body.label.entry_id, f"{path}.label.entry_id")
            return NewEntry(
                kind=EntryKind.LABEL,
                body=serialize(body),
                label=_LABELS[body.label.kind],
                target_entry_id=body.label.entry_id,
            )
        case "header":
            raise invalid(f"{path}.header", "headers are written by the service alone")
        case _:
            raise invalid(path, "has no kind; give a message, a system note or a label")


def _storable(message: content_pb.Message, path: str) -> content_pb.Message:
    stored = content_pb.Message()
    stored.CopyFrom(message)
    stored.tool_name = message.tool_name.strip()
    _check_text(stored.tool_call_id, f"{path}.tool_call_id")
    if stored.role == content_pb.ROLE_TOOL_RESULT and not stored.tool_call_id.strip():
        raise invalid(f"{path}.tool_call_id", "a tool result names the call that it answers")
    for index, block in enumerate(stored.content):
        at = f"{path}.content[{index}]"
        match block.WhichOneof("block"):
            case "tool_call":
                _make_storable(block.tool_call, f"{at}.tool_call")
            case None:
                raise invalid(at, "is empty")
    return stored


def _make_storable(call: content_pb.ToolCall, path: str) -> None:
    call.name = call.name.strip()
    if not call.name:
        raise invalid(f"{path}.name", "is blank")
    _check_text(call.tool_call_id, f"{path}.tool_call_id")
    if not call.tool_call_id.strip():
        raise invalid(f"{path}.tool_call_id", "is blank")
    try:
        call.block_json = redact_block(call.name, call.block_json)
    except NotJson as error:
        raise invalid(f"{path}.block_json", "is not one JSON object of reasonable depth") from error


def _check_text(text: str, path: str) -> None:
    if "\x00" in text:
        raise invalid(path, "has a NUL character, which cannot be stored")


def _block_token_count(block: content_pb.ContentBlock) -> int:
    match block.WhichOneof("block"):
        case "text":
            return count_tokens(block.text.text)
        case "thinking":
            return count_tokens(block.thinking.text)
        case "tool_call":
            return count_tokens(block.tool_call.block_json)
        case _:
            return IMAGE_TOKEN_COUNT
