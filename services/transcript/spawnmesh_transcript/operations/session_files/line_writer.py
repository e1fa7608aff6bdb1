"""Write entries that no import made as lines of a session file."""

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.json_text import NotJson, member_spans, quoted

from spawnmesh_transcript.domain.line_parts import CALL_IDS, CALL_TYPES, MIRROR_TYPE

_VERSION = 3
_ROLES = {
    content_pb.ROLE_USER: "user",
    content_pb.ROLE_ASSISTANT: "assistant",
    content_pb.ROLE_TOOL_RESULT: "toolResult",
    content_pb.ROLE_BASH_EXECUTION: "bashExecution",
    content_pb.ROLE_CUSTOM: "custom",
}

# JSON with line breaks, also within strings, becomes one line of a file.
_STRING_OR_BREAK = re.compile(
    r'"(?:[^"\\]++|\\.)*+"|[\r\n]+', re.DOTALL
)  # Possessive: a string has megabytes.
_CONTROL = re.compile(r"[\x00-\x1f]")
# In JSON these occur in strings alone, and some readers take them for the end of a line.
_LINE_ENDS = {end: f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


class _Raw(str):
    """JSON that goes into the line as it was stored: its numbers and escapes are not parsed."""

    __slots__ = ()


def line_of(
    entry_id: str, create_time: datetime, body: pb.EntryBody, parent_id: str, names: Mapping[str, str]
) -> str:
    """Return the line of an entry.

    `parent_id` is the file's id of the entry before it, and `names` are the file's ids of the
    entries that it may refer to.
    """
    made = {"id": entry_id, "parentId": parent_id or None, "timestamp": create_time.isoformat()}
    if body.HasField("header"):
        header: dict[str, Any] = {"type": "session", "version": _VERSION, "id": body.header.session_id}
        header["timestamp"] = made["timestamp"]
        if body.header.forked_from_session_id:
            header["parentSession"] = body.header.forked_from_session_id
        return _written(header)
    return _written({**_said(body, names), **made})


def line_bytes(line: str) -> bytes:
    """Return the line's bytes in the file, without the line feed."""
    for end, escape in _LINE_ENDS.items():
        line = line.replace(end, escape)
    return line.encode()


def referred_id(body: pb.EntryBody) -> str:
    """Return the id of the entry that the body refers to, empty if it refers to none."""
    match body.WhichOneof("kind"):
        case "label":
            return body.label.entry_id
        case "compaction":
            return body.compaction.first_kept_entry_id
        case "branch_summary":
            return body.branch_summary.from_entry_id
        case _:
            return ""


def _written(value: Any) -> str:
    if isinstance(value, _Raw):
        return value
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(name)}: {_written(child)}" for name, child in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _raw(text: str) -> _Raw:
    return _Raw(_STRING_OR_BREAK.sub(_in_one_line, text) if _CONTROL.search(text) else text)


def _in_one_line(found: re.Match[str]) -> str:
    text = found.group()
    return _CONTROL.sub(lambda one: f"\\u{ord(one.group()):04x}", text) if text.startswith('"') else " "


def _members(text: str) -> dict[str, _Raw]:
    """Return the members of a JSON object as they were stored; the last of a name counts, as in
    JSON readers.
    """
    return {name: _raw(text[start:end]) for name, start, end in member_spans(text)}


def _said(body: pb.EntryBody, names: Mapping[str, str]) -> dict[str, Any]:
    referred = names.get(referred_id(body), referred_id(body))
    match body.WhichOneof("kind"):
        case "message":
            return {"type": "message", "message": _message(body.message)}
        case "system_note":
            note = body.system_note
            details = {"topic": note.topic}
            return {
                "type": "custom_message",
                "customType": "spawnmesh.note",
                "content": note.text,
                "details": details,
            }
        case "label":
            label = pb.LabelKind.Name(body.label.kind).removeprefix("LABEL_KIND_").lower()
            return {"type": "label", "targetId": referred, "label": label}
        case "model_change":
            return _model_change(body.model_change)
        case "compaction":
            return _compaction(body.compaction, referred)
        case "branch_summary":
            summary = {"type": "branch_summary", "summary": body.branch_summary.summary}
            return {**summary, "fromId": referred or None}
        case "custom":
            said: dict[str, Any] = {"type": "custom", "customType": body.custom.custom_type}
            return {**said, "data": _raw(body.custom.data_json)} if body.custom.data_json else said
        case "opaque":
            return {**_members(body.opaque.entry_json), "type": body.opaque.type}
        case _:
            data = {"message": _message(body.mirror.message), "destination": body.mirror.destination}
            return {"type": "custom", "customType": MIRROR_TYPE, "data": data}


def _model_change(change: pb.ModelChange) -> dict[str, Any]:
    if not change.model:
        return {"type": "thinking_level_change", "thinkingLevel": change.thinking_level}
    provider, _, model = change.model.rpartition("/")
    said = {"type": "model_change", "provider": provider, "modelId": model}
    return {**said, "thinkingLevel": change.thinking_level} if change.thinking_level else said


def _compaction(compaction: pb.Compaction, first_kept_id: str) -> dict[str, Any]:
    said: dict[str, Any] = {"type": "compaction", "summary": compaction.summary}
    if first_kept_id:
        said["firstKeptEntryId"] = first_kept_id
    said["tokensBefore"] = compaction.token_count_before
    if compaction.token_count_after:
        said["tokensAfter"] = compaction.token_count_after
    return said


def _message(message: content_pb.Message) -> dict[str, Any]:
    said: dict[str, Any] = {"role": _ROLES[message.role]}
    if message.role == content_pb.ROLE_BASH_EXECUTION:
        execution = message.bash_execution
        said |= {
            "command": execution.command,
            "output": "".join(block.text.text for block in message.content),
        }
        if execution.HasField("exit_code"):
            said["exitCode"] = execution.exit_code
        return said | {"cancelled": execution.is_cancelled, "truncated": execution.is_truncated}
    said["content"] = [_block(block) for block in message.content]
    match message.role:
        case content_pb.ROLE_TOOL_RESULT:
            said |= {
                "toolCallId": message.tool_call_id,
                "toolName": message.tool_name,
                "isError": message.is_error,
            }
        case content_pb.ROLE_CUSTOM:
            said["customType"] = message.custom_type
        case content_pb.ROLE_ASSISTANT:
            provider, _, model = message.model.rpartition("/")
            said |= {"provider": provider, "model": model} if model else {}
            said |= {"usage": _usage(message.usage)} if message.HasField("usage") else {}
            said |= {"imageProvider": message.image_provider} if message.image_provider else {}
    return said


def _usage(usage: content_pb.TokenUsage) -> dict[str, int]:
    return {
        "input": usage.input_token_count,
        "output": usage.output_token_count,
        "cacheRead": usage.cache_read_token_count,
        "cacheWrite": usage.cache_write_token_count,
    }


def _block(block: content_pb.ContentBlock) -> dict[str, Any] | _Raw:
    match block.WhichOneof("block"):
        case "text":
            return {"type": "text", "text": block.text.text}
        case "thinking":
            thought = {"type": "thinking", "thinking": block.thinking.text}
            return (
                {**thought, "thinkingSignature": block.thinking.signature}
                if block.thinking.signature
                else thought
            )
        case "tool_call":
            return _call(block.tool_call)
        case _:
            data = b64encode(block.image.data).decode()
            return {"type": "image", "mimeType": block.image.mime_type, "data": data}


def _call(call: content_pb.ToolCall) -> dict[str, Any] | _Raw:
    """Return the provider's block if an import recognizes it, otherwise our shape with the block
    beside it.
    """
    try:
        block = json.loads(
            call.block_json, strict=False, parse_int=len
        )  # Python refuses to parse very long numbers.
    except RecursionError:
        block = {}
    provider_block = _raw(call.block_json)
    if block.get("type") in CALL_TYPES and _named_by(block) == (call.tool_call_id, call.name):
        return provider_block
    made = {
        "type": "toolCall",
        "id": call.tool_call_id,
        "name": call.name,
        "arguments": _arguments(call.block_json),
    }
    return {**made, "providerBlock": provider_block}


def _named_by(block: dict[str, Any]) -> tuple[str, str]:
    """Return the id and the name that an import reads in a call's block."""
    name = block.get("name")
    ids = (block.get(key) for key in CALL_IDS)
    call_id = next((found for found in ids if isinstance(found, str) and found), "")
    return call_id, name.strip() if isinstance(name, str) else ""


def _arguments(block_json: str) -> _Raw:
    try:
        members = _members(block_json)
    except NotJson:  # Nested too deep to be parsed; the block beside it has them.
        members = {}
    return next((members[name] for name in ("arguments", "input") if name in members), _Raw("{}"))
