"""Transcript entries, rendered for people."""

from spawnmesh.content.v1.message_pb2 import ContentBlock, Message, Role
from spawnmesh.transcript.v1.entry_pb2 import Entry, LabelKind

_SHOWN_CHARS = 400  # The limit for tool calls and thoughts; `--json` prints them completely.


def entry_text(entry: Entry) -> tuple[str, str]:
    """Return a heading for the entry and its text. Both may hold any stored character."""
    body = entry.body
    match body.WhichOneof("kind"):
        case "header":
            source = body.header.forked_from_session_id
            return "header", f"forked from {source}" if source else ""
        case "message":
            return _message_text(body.message)
        case "system_note":
            return f"note: {body.system_note.topic}", body.system_note.text
        case "label":
            return LabelKind.Name(body.label.kind).removeprefix("LABEL_KIND_").lower(), body.label.entry_id
        case "model_change":
            change = body.model_change
            return "model change", " ".join(part for part in (change.model, change.thinking_level) if part)
        case "compaction":
            return "compaction", body.compaction.summary
        case "branch_summary":
            return "branch summary", body.branch_summary.summary
        case "custom":
            return f"custom: {body.custom.custom_type}", _short(body.custom.data_json)
        case "opaque":
            return f"imported: {body.opaque.type}", _short(body.opaque.entry_json)
        case "mirror":
            heading, text = _message_text(body.mirror.message)
            return f"mirror to {body.mirror.destination}: {heading}", text
        case _:
            return "of a kind this client does not know", ""


def _message_text(message: Message) -> tuple[str, str]:
    command = [f"$ {message.bash_execution.command}"] if message.HasField("bash_execution") else []
    return _heading(message), "\n".join([*command, *(_block_text(block) for block in message.content)])


def _heading(message: Message) -> str:
    role = Role.Name(message.role).removeprefix("ROLE_").replace("_", " ").lower()
    detail = message.model or message.tool_name
    failed = ", failed" if message.is_error else ""
    return f"{role} ({detail}{failed})" if detail or failed else role


def _block_text(block: ContentBlock) -> str:
    match block.WhichOneof("block"):
        case "text":
            return block.text.text
        case "thinking":
            return f"[thinking] {_short(block.thinking.text)}"
        case "tool_call":
            return f"[calls {block.tool_call.name}] {_short(block.tool_call.block_json)}"
        case "image":
            return f"[image, {block.image.mime_type}, {len(block.image.data)} bytes]"
        case _:
            return "[of a kind this client does not know]"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
