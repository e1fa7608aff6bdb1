"""What a server answered, as a text that a model reads."""

import json
from collections.abc import Iterable

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from spawnmesh_runner.mcp.credentials import without_secrets
from spawnmesh_runner.mcp.text import cut, plain

_MAX_NAME_CHARACTERS = 500


def result_text(result: CallToolResult, *, secrets: Iterable[str], max_bytes: int) -> str:
    """The texts of an answer, one after the other, and a line for everything that is none. At most `max_bytes`, which a last line then says."""
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    parts = [_shown(block) for block in result.content]
    if result.structured_content is not None and not _is_told(result.structured_content, texts):
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    text = "\n".join(parts) or "[no content]"  # Not every provider takes a result without a word.
    return bounded(without_secrets(text, secrets), max_bytes)


def bounded(text: str, max_bytes: int) -> str:
    """The text, fit to be shown and cut to the bytes; a line below says so where it was longer."""
    shown, size = cut(plain(text), max_bytes)
    if size <= max_bytes:
        return shown
    return f"{shown}\n[truncated: the first {len(shown.encode())} of {size} bytes; the rest was not kept]"


def _shown(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type}, {_name(block.mime_type)}, {_decoded_bytes(block.data)} bytes; not shown]"
        case ResourceLink():
            return f"[resource {_name(str(block.uri))}, {_name(block.name)}; not read]"
        case EmbeddedResource(resource=TextResourceContents() as held):
            return f"[resource {_name(str(held.uri))}]\n{held.text}"
        case EmbeddedResource(resource=held):
            assert isinstance(held, BlobResourceContents)
            kind = held.mime_type or "of unknown type"
            return f"[resource {_name(str(held.uri))}, {_name(kind)}, {_decoded_bytes(held.blob)} bytes; not shown]"


def _is_told(structured: object, texts: list[str]) -> bool:
    """Whether the texts say already what the structured content does, as servers do for clients that know texts alone."""
    told: list[object] = []
    for text in texts:
        try:
            told.append(json.loads(text))
        except ValueError:
            told.append(text)
    whole = [structured]
    if isinstance(structured, dict) and set(structured) == {"result"}:
        whole.append(structured["result"])
    return any(one in (told, texts) or one in told or one in texts for one in whole)


def _decoded_bytes(base64: str) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=")


def _name(text: str) -> str:
    """On one line, and not long."""
    return " ".join(text.split())[:_MAX_NAME_CHARACTERS]
