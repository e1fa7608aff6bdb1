"""The view of a transcript entry, whose body is one of several messages."""

from spawnmesh.content.v1.message_pb2 import Message
from spawnmesh.transcript.v1 import entry_pb2

from spawnmesh_client.view_of import view_of, word_of
from spawnmesh_client.views import Entry, EntryKind, Role, ToolCall

_KINDS = {
    "header": EntryKind.HEADER,
    "message": EntryKind.MESSAGE,
    "system_note": EntryKind.NOTE,
    "label": EntryKind.LABEL,
    "model_change": EntryKind.MODEL_CHANGE,
    "compaction": EntryKind.COMPACTION,
    "branch_summary": EntryKind.BRANCH_SUMMARY,
    "custom": EntryKind.CUSTOM,
    "opaque": EntryKind.OPAQUE,
    "mirror": EntryKind.MIRROR,
}


def entry_view(entry: entry_pb2.Entry) -> Entry:
    """Return the view of an entry."""
    body = entry.body
    kind = body.WhichOneof("kind")
    message = body.mirror.message if kind == "mirror" else body.message
    says = kind in ("message", "mirror")
    role = Message.DESCRIPTOR.fields_by_name["role"].enum_type
    return view_of(
        Entry,
        entry,
        kind=_KINDS.get(kind or "", EntryKind.UNKNOWN),
        role=word_of(Role, message.role, role) if says else None,
        text=_text(body, message),
        tool_calls=tuple(
            view_of(ToolCall, block.tool_call) for block in message.content if block.HasField("tool_call")
        ),
        tool_name=message.tool_name,
        is_error=message.is_error,
        model=message.model or body.model_change.model,
    )


def _text(body: entry_pb2.EntryBody, message: Message) -> str:
    if message.content:
        return "\n".join(block.text.text for block in message.content if block.HasField("text"))
    return body.system_note.text or body.compaction.summary or body.branch_summary.summary
