"""Mask secrets in the messages of a conversation."""

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh_core.errors import invalid
from spawnmesh_core.json_text import NotJson
from spawnmesh_core.secrets import mask_document, mask_text


def mask_message(message: content_pb.Message, path: str) -> None:
    """Mask the message in place, except for thinking, images and ids.

    Raises INVALID_REQUEST with the path if a tool call is not JSON.
    """
    if message.HasField("bash_execution"):
        message.bash_execution.command = mask_text(message.bash_execution.command)
    for index, block in enumerate(message.content):
        match block.WhichOneof("block"):
            case "text":
                block.text.text = mask_text(block.text.text)
            case "tool_call":
                at = f"{path}.content[{index}].tool_call.block_json"
                block.tool_call.block_json = masked_json(block.tool_call.block_json, at)


def masked_json(text: str, path: str) -> str:
    """Return the JSON text with its secrets masked.

    Raises INVALID_REQUEST with the path if the text is not one JSON value.
    """
    try:
        return mask_document(text)
    except NotJson as error:
        raise invalid(path, "is not one JSON value of reasonable depth and size") from error
