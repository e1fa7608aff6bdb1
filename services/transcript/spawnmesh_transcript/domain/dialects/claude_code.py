"""Session files of Claude Code: `~/.claude/projects/<folder>/<session>.jsonl`.

There is no header. A line with a `uuid` names the line before it as `parentUuid`; lines of other
types, such as `file-history-snapshot`, stand outside of this tree. An answer of a model takes one
line for each of its blocks. A compaction is a `compact_boundary` and a user message with
`isCompactSummary`. Messages of sub-agents have `isSidechain`, or are in a file of their own.
"""

from collections.abc import Iterator
from dataclasses import replace

from spawnmesh_core.json_text import List, Object, String

from spawnmesh_transcript.domain.dialects.members import (
    id_in,
    is_true,
    object_in,
    objects_in,
    string_in,
    text_in,
)
from spawnmesh_transcript.domain.dialects.reading import (
    Block,
    CallBlock,
    FileMemory,
    ImageBlock,
    MessagePart,
    Part,
    Reading,
    SummaryPart,
    TextBlock,
    ThinkingBlock,
)
from spawnmesh_transcript.domain.turns import Role

_CHAINED_TYPES = ("user", "assistant", "system", "attachment", "progress")
_NO_MODEL = "<synthetic>"
"""The model of messages that Claude Code wrote in place of one."""


def begins(root: Object) -> bool:
    """Return whether this is a first line of such a file."""
    kind = text_in(root, "type")
    if kind in _CHAINED_TYPES and root.member("parentUuid") is not None:
        return bool(id_in(root, "uuid"))
    if kind == "summary":
        return string_in(root, "leafUuid") is not None
    if kind == "file-history-snapshot":
        return object_in(root, "snapshot") is not None
    return bool(kind) and string_in(root, "sessionId") is not None and root.member("id") is None


def read(line: str, root: Object, number: int, memory: FileMemory) -> tuple[Reading, FileMemory]:
    """Return what is in the line, and what it means for the next one.

    A message without an id follows the newest line.
    """
    kind, source_id = text_in(root, "type"), id_in(root, "uuid")
    parts = tuple(_parts(line, kind, root, memory.first_kept_id))
    if not source_id:
        if not parts:
            return Reading(kind, parent_id=memory.tip_id), memory
        source_id = f"#{number}"
    is_side = is_true(line, root, "isSidechain")
    if parts and (memory.is_subagent is None or not is_side):
        memory = replace(memory, is_subagent=is_side)
    if is_side and not memory.is_subagent:
        return Reading(kind, source_id, id_in(root, "parentUuid"), parts=parts), memory
    parent_id = _parent(line, kind, root, parts, memory.tip_id)
    kept_id = memory.first_kept_id
    if text_in(root, "subtype") == "compact_boundary":
        kept_id = _first_kept(root)
    elif any(isinstance(part, SummaryPart) for part in parts):
        kept_id = ""
    memory = replace(memory, tip_id=source_id, first_kept_id=kept_id)
    return Reading(kind, source_id, parent_id, leaf_id=source_id, parts=parts), memory


def _parent(line: str, kind: str, root: Object, parts: tuple[Part, ...], tip_id: str) -> str:
    """Return the line before this one on its branch.

    Only a prompt begins another branch. Answers and results follow the newest line: of the results
    of parallel calls, each names the line of its own call as its parent.
    """
    has_result = any(isinstance(part, MessagePart) and part.call_id for part in parts)
    if tip_id and (kind == "assistant" or has_result or root.member("uuid") is None):
        return tip_id
    return id_in(root, "parentUuid") or id_in(root, "logicalParentUuid")


def _first_kept(boundary: Object) -> str:
    """Return the first line that the summary after this boundary keeps, empty if it keeps none."""
    metadata = object_in(boundary, "compactMetadata")
    if metadata is None:
        return ""
    segment, messages = object_in(metadata, "preservedSegment"), object_in(metadata, "preservedMessages")
    if segment is not None:
        return id_in(segment, "headUuid")
    uuids = messages.member("uuids") if messages else None
    first = uuids.items[0] if isinstance(uuids, List) and uuids.items else None
    return first.value if isinstance(first, String) else ""


def _parts(line: str, kind: str, root: Object, first_kept_id: str) -> Iterator[Part]:
    message = object_in(root, "message")
    if message is None:
        return
    if kind == "assistant" and not is_true(line, root, "isApiErrorMessage"):
        blocks = tuple(_blocks(message))
        model = text_in(message, "model")
        if blocks:
            yield MessagePart(
                Role.ASSISTANT, blocks, model=f"anthropic/{model}" if model not in ("", _NO_MODEL) else ""
            )
    elif kind == "user" and is_true(line, root, "isCompactSummary"):
        texts = tuple(block.node for block in _blocks(message) if isinstance(block, TextBlock))
        if any(text.value for text in texts):
            yield SummaryPart(texts, first_kept_id)
    elif kind == "user" and not is_true(line, root, "isVisibleInTranscriptOnly"):
        for block in objects_in(message.member("content")):
            if text_in(block, "type") == "tool_result":
                yield MessagePart(
                    Role.TOOL_RESULT,
                    tuple(_blocks(block)),
                    call_id=text_in(block, "tool_use_id"),
                    is_error=is_true(line, block, "is_error"),
                )
        if blocks := tuple(_blocks(message)):
            yield MessagePart(Role.USER, blocks)


def _blocks(node: Object) -> Iterator[Block]:
    """Yield the known blocks of a message's or a result's content."""
    content = string_in(node, "content")
    if content is not None:
        yield TextBlock(content)
    for block in objects_in(node.member("content")):
        match text_in(block, "type"):
            case "text" if (text := string_in(block, "text")) is not None:
                yield TextBlock(text)
            case "thinking" if (text := string_in(block, "thinking")) is not None:
                yield ThinkingBlock(text, string_in(block, "signature"))
            case "tool_use":
                yield CallBlock(block, text_in(block, "id"), text_in(block, "name"))
            case "image" if (source := object_in(block, "source")) is not None:
                if (data := string_in(source, "data")) is not None:
                    yield ImageBlock(text_in(source, "media_type"), data)
