"""The form of stored bodies: their kinds and roles, their serialization, and checks of messages."""

from google.protobuf.message import DecodeError
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import MeshError, invalid

from spawnmesh_transcript.domain.entries import EntryKind, Label
from spawnmesh_transcript.domain.turns import Role

KINDS = {
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
ROLES = {
    content_pb.ROLE_USER: Role.USER,
    content_pb.ROLE_ASSISTANT: Role.ASSISTANT,
    content_pb.ROLE_TOOL_RESULT: Role.TOOL_RESULT,
    content_pb.ROLE_BASH_EXECUTION: Role.BASH_EXECUTION,
    content_pb.ROLE_CUSTOM: Role.CUSTOM,
}
LABELS = {pb.LABEL_KIND_SUPERSEDED: Label.SUPERSEDED, pb.LABEL_KIND_FINAL: Label.FINAL}


def serialize(body: pb.EntryBody) -> bytes:
    """Return the bytes that are stored and hashed."""
    return body.SerializeToString(deterministic=True)


def is_canonical(kind: EntryKind, role: Role | None, stored: bytes) -> bool:
    """Return whether the bytes are those that the service stores for an entry of this kind and
    role.

    JSON inside them is not parsed again.
    """
    try:
        body = pb.EntryBody.FromString(stored)
    except DecodeError:
        return False
    field = body.WhichOneof("kind")
    if field is None or KINDS.get(field) is not kind:
        return False
    if kind is EntryKind.MESSAGE:
        try:
            check_message(body.message, field)
        except MeshError:
            return False
        if ROLES.get(body.message.role) is not role:
            return False
    return serialize(body) == stored


def check_message(message: content_pb.Message, path: str) -> None:
    """Raise INVALID_REQUEST for a message with an empty block, without a field that its role
    needs, or with one that its role must not have.
    """
    check_text(message.tool_call_id, f"{path}.tool_call_id")
    if message.role == content_pb.ROLE_TOOL_RESULT and not message.tool_call_id.strip():
        raise invalid(f"{path}.tool_call_id", "a tool result names the call that it answers")
    if (message.role == content_pb.ROLE_BASH_EXECUTION) != message.HasField("bash_execution"):
        raise invalid(f"{path}.bash_execution", "goes with the role BASH_EXECUTION, and with no other")
    if (message.role == content_pb.ROLE_CUSTOM) != bool(message.custom_type.strip()):
        raise invalid(f"{path}.custom_type", "goes with the role CUSTOM, and with no other")
    for index, block in enumerate(message.content):
        at = f"{path}.content[{index}]"
        match block.WhichOneof("block"):
            case "tool_call":
                _check_call(block.tool_call, f"{at}.tool_call")
            case None:
                raise invalid(at, "is empty")


def check_text(text: str, path: str) -> None:
    """Raise INVALID_REQUEST for a text that no column can store."""
    if "\x00" in text:
        raise invalid(path, "has a NUL character, which cannot be stored")


def _check_call(call: content_pb.ToolCall, path: str) -> None:
    if not call.name.strip():
        raise invalid(f"{path}.name", "is blank")
    check_text(call.tool_call_id, f"{path}.tool_call_id")
    if not call.tool_call_id.strip():
        raise invalid(f"{path}.tool_call_id", "is blank")
