"""Takes secrets out of entries, for tenants whose policy says so."""

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import invalid

from spawnmesh_transcript.domain.json_text import NotJson
from spawnmesh_transcript.domain.secrets import mask_document, mask_text


def masked_body(body: pb.EntryBody, path: str) -> pb.EntryBody:
    """A copy without secrets, with thinking, images and ids as they were. Raises INVALID_REQUEST for what should be JSON and is not."""
    masked = pb.EntryBody()
    masked.CopyFrom(body)
    match masked.WhichOneof("kind"):
        case "message":
            _mask_message(masked.message, f"{path}.message")
        case "mirror":
            _mask_message(masked.mirror.message, f"{path}.mirror.message")
        case "system_note":
            masked.system_note.text = mask_text(masked.system_note.text)
        case "compaction":
            masked.compaction.summary = mask_text(masked.compaction.summary)
        case "branch_summary":
            masked.branch_summary.summary = mask_text(masked.branch_summary.summary)
        case "custom":
            masked.custom.data_json = _document(masked.custom.data_json, f"{path}.custom.data_json")
        case "opaque":
            masked.opaque.entry_json = _document(masked.opaque.entry_json, f"{path}.opaque.entry_json")
    return masked


def _mask_message(message: content_pb.Message, path: str) -> None:
    if message.HasField("bash_execution"):
        message.bash_execution.command = mask_text(message.bash_execution.command)
    for index, block in enumerate(message.content):
        match block.WhichOneof("block"):
            case "text":
                block.text.text = mask_text(block.text.text)
            case "tool_call":
                at = f"{path}.content[{index}].tool_call.block_json"
                block.tool_call.block_json = _document(block.tool_call.block_json, at)


def _document(text: str, path: str) -> str:
    try:
        return mask_document(text)
    except NotJson as error:
        raise invalid(path, "is not one JSON value of reasonable depth") from error
