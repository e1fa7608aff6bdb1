"""Files that are handed over inline."""

from typing import Any

from spawnmesh.attachment_blob.v1 import attachment_pb2


def text(name: str, content: str, mime_type: str = "text/plain") -> attachment_pb2.InlineAttachment:
    """Build an item with text."""
    return attachment_pb2.InlineAttachment(
        name=name, content=content, encoding=attachment_pb2.ENCODING_UTF8, mime_type=mime_type
    )


def base64(name: str, content: str) -> attachment_pb2.InlineAttachment:
    """Build an item with base64."""
    return attachment_pb2.InlineAttachment(
        name=name, content=content, encoding=attachment_pb2.ENCODING_BASE64
    )


def raw(name: str, data: bytes, encoding: Any = attachment_pb2.ENCODING_UNSPECIFIED) -> Any:
    """Build an item with bytes."""
    return attachment_pb2.InlineAttachment(name=name, data=data, encoding=encoding)
