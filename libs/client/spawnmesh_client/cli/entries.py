"""A transcript as people read it."""

from spawnmesh.content.v1.message_pb2 import ContentBlock, Message, Role
from spawnmesh.transcript.v1.entry_pb2 import Entry, LabelKind

_SHOWN_CHARS = 400  # Of a tool's call and of what a model thought; `--json` has all of it.


def entry_text(entry: Entry) -> tuple[str, str]:
    """A heading for the entry, and what it says; either may hold anything that was stored."""
    body = entry.body
    match body.WhichOneof("kind"):
        case "header":
            source = body.header.forked_from_session_id
            return "header", f"forked from {source}" if source else ""
        case "message":
            return _heading(body.message), "\n".join(_block_text(block) for block in body.message.content)
        case "system_note":
            return f"note: {body.system_note.topic}", body.system_note.text
        case "label":
            return LabelKind.Name(body.label.kind).removeprefix("LABEL_KIND_").lower(), body.label.entry_id
        case _:
            return "of a kind this client does not know", ""


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
