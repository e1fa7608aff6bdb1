"""Recognize calls of the spawn tool, whose attachments are redacted."""

import re

from spawnmesh_core.json_text import Object, String

SPAWN_TOOLS = frozenset({"sessions_spawn", "spawn_session"})
_NAMESPACE = "functions."  # Models put it before a name when they make several calls at once.
_PUNCTUATION = re.compile(r"[\W_]+")
_NAME_KEYS = frozenset({"name", "tool", "toolname", "function", "functionname", "recipientname"})
ARGUMENT_KEYS = frozenset(
    {
        "arguments",
        "input",
        "args",
        "params",
        "parameters",
        "argumentsjson",
        "inputjson",
        "partialjson",
        "rawarguments",
        "rawinput",
    }
)


def may_hold_spawn_call(text: str) -> bool:
    """Return False only for a JSON text that surely has no spawn call.

    Most calls are of other tools and need no search.
    """
    return "\\u" in text or "spawn" in text.casefold()


def is_spawn_tool(name: str) -> bool:
    """Return whether a tool name is that of the spawn tool, without case and namespace."""
    return name.strip().casefold().removeprefix(_NAMESPACE) in SPAWN_TOOLS


def names_spawn_tool(block: Object) -> bool:
    """Return whether the block names the spawn tool, itself or in the object it wraps.

    For example, `{"function": {"name": …}}` wraps one.
    """
    for key, node in block.members:
        plain = plain_key(key)
        if plain in _NAME_KEYS and isinstance(node, String) and is_spawn_tool(node.value):
            return True
        if isinstance(node, Object) and plain not in ARGUMENT_KEYS:
            for inner_key, inner in node.members:
                if (
                    plain_key(inner_key) in _NAME_KEYS
                    and isinstance(inner, String)
                    and is_spawn_tool(inner.value)
                ):
                    return True
    return False


def plain_key(key: str) -> str:
    """Return the key without case and punctuation: `mimeType` and `MIME-Type` become `mimetype`."""
    return _PUNCTUATION.sub("", key.casefold())
