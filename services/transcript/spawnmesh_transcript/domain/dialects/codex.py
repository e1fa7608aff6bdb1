"""Rollout files of Codex: `~/.codex/sessions/<date>/rollout-<time>-<id>.jsonl`.

A line has a `type` and a `payload`. `response_item` is what the model reads, in the shape of the
Responses API; `event_msg` repeats it for the screen. `compacted` replaces all items before it. In
older files the line itself is the item, and the first line has no type.
"""

from collections.abc import Iterator
from dataclasses import replace

from spawnmesh_core.json_text import List, Object, String

from spawnmesh_transcript.domain.dialects.members import (
    id_in,
    object_in,
    objects_in,
    scalar_in,
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

_LINE_TYPES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted", "world_state")
_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT}
_CALLS = {
    "function_call": "",
    "custom_tool_call": "",
    "local_shell_call": "local_shell",
}
"""Items that call a tool, with the tool's name if the item has none."""

_RESULTS = ("function_call_output", "custom_tool_call_output")
_NOT_TYPED = (
    "# AGENTS.md instructions",
    "<environment_context",
    "<permissions",
    "<skill",
    "<subagent_notification",
    "<turn_aborted",
    "<user_instructions",
    "<user_shell_command",
)
"""The beginnings of user messages that Codex wrote itself."""

_SEALED = ("compaction", "compaction_summary", "context_compaction")
"""Items with a summary that only the provider can read."""

_MAX_TURNS = 200
"""User turns that are remembered for a rollback."""


def begins(root: Object) -> bool:
    """Return whether this is a first line of such a file."""
    kind = root.member("type")
    if kind is None:
        has_facts = root.member("instructions") is not None or root.member("git") is not None
        return bool(id_in(root, "id")) and string_in(root, "timestamp") is not None and has_facts
    return text_in(root, "type") in _LINE_TYPES and object_in(root, "payload") is not None


def read(line: str, root: Object, number: int, memory: FileMemory) -> tuple[Reading, FileMemory]:
    """Return what is in the line, and what it means for the next one.

    A line has no id of its own: it follows the one before it, unless a rollback is between them.
    """
    kind = text_in(root, "type") or text_in(root, "record_type") or "session_meta"
    payload = object_in(root, "payload")
    parts: tuple[Part, ...] = ()
    if kind == "compacted" and payload is not None:
        parts = tuple(_summary(payload))
        turn_parents = () if parts else memory.turn_parents
    else:
        item = root if payload is None else payload if kind == "response_item" else None
        parts = tuple(_parts(line, item)) if item is not None else ()
        turn_parents = memory.turn_parents
        if any(_is_typed(part) for part in parts):
            turn_parents = (*turn_parents, memory.tip_id)[-_MAX_TURNS:]
    tip_id = str(number)
    if kind == "event_msg" and payload is not None and text_in(payload, "type") == "thread_rolled_back":
        count = _count(scalar_in(line, payload, "num_turns"), len(turn_parents))
        if count:
            tip_id, turn_parents = turn_parents[-count], turn_parents[:-count]
    reading = Reading(kind, str(number), memory.tip_id, leaf_id=tip_id, parts=parts)
    return reading, replace(memory, tip_id=tip_id, turn_parents=turn_parents)


def _count(written: str, limit: int) -> int:
    return min(int(written), limit) if written.isdigit() and len(written) < 10 else 0


def _is_typed(part: Part) -> bool:
    """Return whether this is a message that a user typed: a turn begins with it."""
    if not isinstance(part, MessagePart) or part.role is not Role.USER:
        return False
    first = part.blocks[0]
    return not (isinstance(first, TextBlock) and first.node.value.startswith(_NOT_TYPED))


def _parts(line: str, item: Object) -> Iterator[Part]:
    kind = text_in(item, "type")
    if kind == "message" and (role := _ROLES.get(text_in(item, "role"))):
        if blocks := tuple(_blocks(item.member("content"))):
            yield MessagePart(role, blocks)
    elif kind == "reasoning":
        thoughts = tuple(
            ThinkingBlock(block.node)
            for name in ("summary", "content")
            for block in _blocks(item.member(name))
            if isinstance(block, TextBlock)
        )
        if thoughts:
            yield MessagePart(Role.ASSISTANT, thoughts)
    elif kind in _CALLS:
        call_id = text_in(item, "call_id") or text_in(item, "id")
        yield MessagePart(Role.ASSISTANT, (CallBlock(item, call_id, text_in(item, "name") or _CALLS[kind]),))
    elif kind in _RESULTS:
        yield _result(line, item)


def _result(line: str, item: Object) -> MessagePart:
    output = item.member("output")
    is_error = False
    if isinstance(output, Object):
        is_error = scalar_in(line, output, "success") == "false"
        output = output.member("content")
    blocks = (TextBlock(output),) if isinstance(output, String) else tuple(_blocks(output))
    return MessagePart(Role.TOOL_RESULT, blocks, call_id=text_in(item, "call_id"), is_error=is_error)


def _blocks(content: object) -> Iterator[Block]:
    for block in objects_in(content if isinstance(content, List) else None):
        kind = text_in(block, "type")
        url = string_in(block, "image_url")
        if kind.endswith("text") and (text := string_in(block, "text")) is not None:
            yield TextBlock(text)
        elif kind == "input_image" and url is not None:
            head, comma, _ = url.value.partition(";base64,")
            if comma and head.startswith("data:"):
                yield ImageBlock(head.removeprefix("data:"), url, len(head + comma))


def _summary(payload: Object) -> Iterator[SummaryPart]:
    """Yield the summary, with the user messages that Codex keeps beside it.

    Yield none if the provider has sealed it: nothing readable could stand for the history.
    """
    items = list(objects_in(payload.member("replacement_history")))
    if any(text_in(item, "type") in _SEALED for item in items):
        return
    said = [item for item in items if text_in(item, "type") == "message" and text_in(item, "role") in _ROLES]
    texts = [
        block.node
        for item in said
        for block in _blocks(item.member("content"))
        if isinstance(block, TextBlock)
    ]
    kept = tuple(text for text in texts if not text.value.startswith(_NOT_TYPED))
    message = string_in(payload, "message")
    if kept:
        yield SummaryPart(kept)
    elif message is not None and message.value:
        yield SummaryPart((message,))
