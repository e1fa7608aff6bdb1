"""The result of an MCP tool call as a text for the model."""

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
from spawnmesh_core.invisible_text import replace_invisible

from spawnmesh_runner.clients.mcp.credentials import redact_secrets
from spawnmesh_runner.clients.mcp.text import truncate

_MAX_NAME_CHARACTERS = 500


def result_text(result: CallToolResult, *, secrets: Iterable[str], max_bytes: int) -> str:
    """Return the texts of a result and one line for each other part, truncated to `max_bytes`."""
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    parts = [_part_text(block) for block in result.content]
    if result.structured_content is not None and not _is_in_texts(result.structured_content, texts):
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    text = "\n".join(parts) or "[no content]"  # Some providers refuse an empty result.
    return truncate_with_note(redact_secrets(text, secrets), max_bytes)


def truncate_with_note(text: str, max_bytes: int) -> str:
    """Return the sanitized text, truncated to `max_bytes`. A last line tells if it was longer."""
    shown, size = truncate(replace_invisible(text), max_bytes)
    if size <= max_bytes:
        return shown
    return f"{shown}\n[truncated: the first {len(shown.encode())} of {size} bytes; the rest was not kept]"


def _part_text(block: ContentBlock) -> str:
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
            size = _decoded_bytes(held.blob)
            return f"[resource {_name(str(held.uri))}, {_name(kind)}, {size} bytes; not shown]"


def _is_in_texts(structured: object, texts: list[str]) -> bool:
    """Return True if the texts repeat the structured content.

    Servers repeat it for clients that read only texts.
    """
    parsed: list[object] = []
    for text in texts:
        try:
            parsed.append(json.loads(text))
        except ValueError:
            parsed.append(text)
    candidates = [structured]
    if isinstance(structured, dict) and set(structured) == {"result"}:
        candidates.append(structured["result"])
    return any(one in (parsed, texts) or one in parsed or one in texts for one in candidates)


def _decoded_bytes(base64: str) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=")


def _name(text: str) -> str:
    """Return the text on one line, shortened."""
    return " ".join(text.split())[:_MAX_NAME_CHARACTERS]
