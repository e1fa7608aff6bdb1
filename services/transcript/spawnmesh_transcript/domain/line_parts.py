"""The parts of a session file's line that the contract knows, found before the line becomes an
entry.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from spawnmesh_core.json_text import List, Node, Object, String

CALL_TYPES = ("toolCall", "toolUse", "functionCall", "tool_call", "tool_use", "function_call")
CALL_IDS = ("id", "toolCallId", "toolUseId", "tool_call_id", "tool_use_id", "callId", "call_id")
"""Fields of a call's block that may have its id; the first one that is not empty counts."""

MIRROR_TYPE = "spawnmesh.mirror"
"""The custom type of mirrors in session files; their data has the message."""

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
"""Types of lines that an import interprets; all others become opaque entries."""

_TEXTS_OF_BLOCKS = {"text": ("text",), "thinking": ("thinking", "thinkingSignature", "signature")}
_BASH_ROLES = ("bashExecution", "bash_execution")
_CONTENT_ROLES = ("user", "assistant", "toolResult", "tool_result", "custom", "hookMessage")


@dataclass(frozen=True, slots=True)
class LineParts:
    """The start positions of the strings that are texts of the entry, and of the objects that are
    its calls.
    """

    texts: frozenset[int] = frozenset()
    calls: frozenset[int] = frozenset()


def parts_of(root: Object) -> LineParts:
    """Return the parts of a message, a mirror or a summary; no parts of any other line."""
    kind = _text(root, "type")
    message = _message_of(root, kind)
    blocks: list[Object] = []
    texts: list[Node | None] = []
    if kind in ("compaction", "branch_summary"):
        texts.append(root.member("summary"))
    if isinstance(message, Object):
        role = "custom" if kind == "custom_message" else _text(message, "role")
        if role in _BASH_ROLES:
            texts += (message.member("output"), message.member("command"))
        elif role in _CONTENT_ROLES:
            content = message.member("content")
            items = content.items if isinstance(content, List) else ()
            texts += (content, *items)
            blocks = [item for item in items if isinstance(item, Object)]
    texts += (text for block in blocks for text in _texts_of(block))
    return LineParts(
        texts=frozenset(text.start for text in texts if isinstance(text, String)),
        calls=frozenset(block.start for block in blocks if _text(block, "type") in CALL_TYPES),
    )


def _message_of(root: Object, kind: str) -> Node | None:
    match kind:
        case "custom_message":
            return root
        case "message":
            return root.member("message")
        case "custom" if _text(root, "customType") == MIRROR_TYPE:
            data = root.member("data")
            return data.member("message") if isinstance(data, Object) else None
        case _:
            return None


def _texts_of(block: Object) -> Iterator[Node | None]:
    return (block.member(name) for name in _TEXTS_OF_BLOCKS.get(_text(block, "type"), ()))


def _text(node: Object, name: str) -> str:
    child = node.member(name)
    return child.value if isinstance(child, String) else ""
