"""Render stored entries for a model that summarizes: one JSON object a line, so that no text can
pass for another entry.

CPU work only.
"""

import json

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb

from spawnmesh_transcript.domain.compaction import Count, Source, cut_middle
from spawnmesh_transcript.domain.stub_text import shown_tool_name

_SAID_CHARS = 24_000
_RESULT_CHARS = 4_000  # A longer result usually has a reference.
_CALL_CHARS = 1_000

_SPEAKERS = {
    content_pb.ROLE_USER: "user",
    content_pb.ROLE_ASSISTANT: "assistant",
    content_pb.ROLE_BASH_EXECUTION: "shell",
}


def source_of(seq: int, stored: bytes, count: Count) -> Source:
    """Return the entry without thoughts and images, and with long results cut in the middle."""
    body = pb.EntryBody.FromString(stored)
    if body.HasField("system_note"):
        speaker, text, is_error = "system", cut_middle(body.system_note.text, _SAID_CHARS), False
    else:
        speaker, text, is_error = _speaker(body.message), _text(body.message), body.message.is_error
    shown: dict[str, object] = {"seq": seq, "from": speaker, "text": text}
    if is_error:
        shown["failed"] = True
    line = json.dumps(shown, ensure_ascii=False)
    return Source(seq, speaker, text, line, count(line) + 1)


def _speaker(message: content_pb.Message) -> str:
    """Return the speaker, on one line: an excerpt has one line for each source, whatever a tool or
    an extension calls itself.
    """
    match message.role:
        case content_pb.ROLE_TOOL_RESULT:
            return f"tool {shown_tool_name(message.tool_name)}"
        case content_pb.ROLE_CUSTOM:
            return f"extension {shown_tool_name(message.custom_type)}"
        case role:
            return _SPEAKERS.get(role, "")


def _text(message: content_pb.Message) -> str:
    is_result = message.role in (content_pb.ROLE_TOOL_RESULT, content_pb.ROLE_BASH_EXECUTION)
    parts = [f"$ {message.bash_execution.command}"] if message.HasField("bash_execution") else []
    parts += [_block(block) for block in message.content]
    return cut_middle("\n".join(filter(None, parts)), _RESULT_CHARS if is_result else _SAID_CHARS)


def _block(block: content_pb.ContentBlock) -> str:
    match block.WhichOneof("block"):
        case "text":
            return block.text.text
        case "tool_call":
            return f"[call of {block.tool_call.name}: {cut_middle(block.tool_call.block_json, _CALL_CHARS)}]"
        case "image":
            return "[image]"
        case _:
            return ""
