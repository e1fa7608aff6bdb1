"""Condense messages, and find what a condensed message left out. CPU work only."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.ids import IdKind, new_id

from spawnmesh_transcript.domain.condensation import (
    CONDENSED_BYTES,
    FILE_ID,
    CondensedFile,
    argument_note,
    condensed_file_id,
    replace_strings,
    string_at,
)
from spawnmesh_transcript.domain.entries import EntryKind, NewEntry
from spawnmesh_transcript.domain.large_results import Stub, file_id_of
from spawnmesh_transcript.domain.stub_text import image_note, shown_mime_type, shown_tool_name, stub_text
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.domain.turns import Role
from spawnmesh_transcript.operations.bodies.stubs import TEXT_TYPE
from spawnmesh_transcript.operations.bodies.tokens import count_tokens, message_token_count
from spawnmesh_transcript.operations.bodies.well_formed import serialize

_OUTPUT_ROLES = (Role.TOOL_RESULT, Role.BASH_EXECUTION)
_FILE_IDS = re.compile(FILE_ID.pattern.encode())
_LEAST_THINKING_TOKENS = 32  # Less thinking is not worth another copy of the message.


class LeftOutFile(NamedTuple):
    """A text or image of a stored message, as DescribeFile returns it."""

    tool_name: str
    mime_type: str
    data: bytes


def condense(entries: Sequence[NewEntry], *, except_places: Iterable[int] = ()) -> list[Stub]:
    """Return the condensed bodies of the messages of a batch that get shorter by it.

    A body that is too short to have anything to leave out is not parsed.
    """
    skipped = set(except_places)
    stubs = [
        _condensed(place, entry)
        for place, entry in enumerate(entries)
        if len(entry.body) >= CONDENSED_BYTES and entry.kind is EntryKind.MESSAGE and place not in skipped
    ]
    return [stub for stub in stubs if stub]


def thinking_token_count(body: bytes, vocabulary: Vocabulary) -> int:
    """Return the tokens of thinking that may be left out of a model's message.

    Returns 0 if the message has nothing else, or hardly any thinking.
    """
    message = pb.EntryBody.FromString(body).message
    texts = [block.thinking.text for block in message.content if block.HasField("thinking")]
    if message.role != content_pb.ROLE_ASSISTANT or len(texts) == len(message.content):
        return 0
    count = sum(count_tokens(text, vocabulary) for text in texts)
    return count if count >= _LEAST_THINKING_TOKENS else 0


def without_thinking(body: bytes) -> bytes:
    """Return the message without its thinking."""
    entry = pb.EntryBody.FromString(body)
    kept = [block for block in entry.message.content if not block.HasField("thinking")]
    shorter = pb.EntryBody()
    shorter.CopyFrom(entry)
    del shorter.message.content[:]
    shorter.message.content.extend(kept)
    return serialize(shorter)


def named_files(body: bytes, message_id: str) -> list[str]:
    """Return the ids of the files that a condensed body names, in order.

    The id of the message is newer than its content, which therefore cannot name such a file.
    """
    own_id = message_id.encode()
    return [found[0].decode() for found in _FILE_IDS.finditer(body) if found[1] == own_id]


def left_out_file(body: bytes, file: CondensedFile) -> LeftOutFile | None:
    """Return a text or image of a stored message, None if the message has none there."""
    message = pb.EntryBody.FromString(body).message
    if file.block_index >= len(message.content):
        return None
    block = message.content[file.block_index]
    match block.WhichOneof("block"), file.string_index:
        case "text", None:
            return LeftOutFile(_tool_name(message), TEXT_TYPE, block.text.text.encode())
        case "image", None:
            mime_type = shown_mime_type(block.image.mime_type)
            return LeftOutFile(_tool_name(message), mime_type, block.image.data)
        case "tool_call", int(index):
            text = string_at(block.tool_call.block_json, index)
            name = shown_tool_name(block.tool_call.name)
            return None if text is None else LeftOutFile(name, TEXT_TYPE, text.encode())
        case _:
            return None


def _condensed(place: int, entry: NewEntry) -> Stub | None:
    body = pb.EntryBody.FromString(entry.body)
    vocabulary = entry.token_vocabulary
    message_id = file_id_of(new_id(IdKind.BLOB))
    saved = 0
    for index, block in enumerate(body.message.content):
        note = _note(body.message, block, condensed_file_id(message_id, index), entry.role)
        if note:
            saved += _replace_if_shorter(block, note, vocabulary)
        elif block.HasField("tool_call"):
            saved += _condense_call(block.tool_call, message_id, index, vocabulary)
    thinking = thinking_token_count(entry.body, vocabulary)
    if not saved and not thinking:
        return None
    return Stub(
        place,
        serialize(body),
        message_token_count(body.message, vocabulary),
        (),
        vocabulary,
        file_id=message_id,
        thinking_token_count=thinking,
    )


def _note(
    message: content_pb.Message, block: content_pb.ContentBlock, file_id: str, role: Role | None
) -> str:
    """Return the note for a text of a tool or for an image, or an empty text."""
    if block.HasField("image"):
        return image_note(file_id, mime_type=block.image.mime_type, size_bytes=len(block.image.data))
    if block.HasField("text") and role in _OUTPUT_ROLES:
        size_bytes = len(block.text.text.encode())
        if size_bytes >= CONDENSED_BYTES:
            return stub_text(file_id, tool_name=_tool_name(message), size_bytes=size_bytes, about="")
    return ""


def _replace_if_shorter(block: content_pb.ContentBlock, note: str, vocabulary: Vocabulary) -> int:
    """Put the note in place of the block if it has fewer tokens, and return how many fewer."""
    kept = message_token_count(content_pb.Message(content=[block]), vocabulary)
    saved = kept - count_tokens(note, vocabulary)
    if saved > 0:
        block.text.text = note
    return max(saved, 0)


def _condense_call(
    call: content_pb.ToolCall, message_id: str, block_index: int, vocabulary: Vocabulary
) -> int:
    """Put notes in place of long strings in the arguments, and return the tokens saved."""

    def shorter(index: int, text: str) -> str:
        size_bytes = len(text.encode())
        if size_bytes < CONDENSED_BYTES:
            return text
        return argument_note(condensed_file_id(message_id, block_index, index), size_bytes)

    replaced = replace_strings(call.block_json, shorter)
    if replaced is None:
        return 0
    saved = count_tokens(call.block_json, vocabulary) - count_tokens(replaced, vocabulary)
    if saved > 0:
        call.block_json = replaced
    return max(saved, 0)


def _tool_name(message: content_pb.Message) -> str:
    is_command = message.role == content_pb.ROLE_BASH_EXECUTION
    return "bash" if is_command else shown_tool_name(message.tool_name)
