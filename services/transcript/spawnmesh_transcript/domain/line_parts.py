"""What the contract knows of a line of a session file, before it is made an entry of."""

from collections.abc import Iterator
from dataclasses import dataclass

from spawnmesh_core.json_text import List, Node, Object, String

CALL_TYPES = ("toolCall", "toolUse", "functionCall", "tool_call", "tool_use", "function_call")
OWNED_TYPES = frozenset(
    {
        "session",
        "message",
        "custom_message",
        "model_change",
        "thinking_level_change",
        "compaction",
        "branch_summary",
        "label",
        "custom",
        "leaf",
    }
)
"""Types of lines that an import reads as more than something unknown."""

_TEXTS_OF_BLOCKS = {"text": ("text",), "thinking": ("thinking", "thinkingSignature", "signature")}
_BASH_ROLES = ("bashExecution", "bash_execution")
_CONTENT_ROLES = ("user", "assistant", "toolResult", "tool_result", "custom")


@dataclass(frozen=True, slots=True)
class LineParts:
    """Where in the line those strings begin that are texts of the entry, and those objects that are its calls."""

    texts: frozenset[int] = frozenset()
    calls: frozenset[int] = frozenset()


def parts_of(root: Object) -> LineParts:
    """The parts of a message or a summary; none of any other line."""
    kind = _text(root, "type")
    message = root if kind == "custom_message" else _last(root, "message") if kind == "message" else None
    blocks: list[Object] = []
    texts: list[Node | None] = []
    if kind in ("compaction", "branch_summary"):
        texts.append(_last(root, "summary"))
    if isinstance(message, Object):
        role = "custom" if kind == "custom_message" else _text(message, "role")
        if role in _BASH_ROLES:
            texts += (_last(message, "output"), _last(message, "command"))
        elif role in _CONTENT_ROLES:
            content = _last(message, "content")
            items = content.items if isinstance(content, List) else ()
            texts += (content, *items)
            blocks = [item for item in items if isinstance(item, Object)]
    texts += (text for block in blocks for text in _texts_of(block))
    return LineParts(
        texts=frozenset(text.start for text in texts if isinstance(text, String)),
        calls=frozenset(block.start for block in blocks if _text(block, "type") in CALL_TYPES),
    )


def _texts_of(block: Object) -> Iterator[Node | None]:
    return (_last(block, name) for name in _TEXTS_OF_BLOCKS.get(_text(block, "type"), ()))


def _last(node: Object, name: str) -> Node | None:
    """The last of this name, as JSON readers take it."""
    return next((child for key, child in reversed(node.members) if key == name), None)


def _text(node: Object, name: str) -> str:
    child = _last(node, name)
    return child.value if isinstance(child, String) else ""
