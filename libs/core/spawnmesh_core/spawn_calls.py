"""Recognize calls of the spawn tool, and the arguments that may be kept and shown."""

import re

from spawnmesh_core.json_text import Object, String

SPAWN_TOOLS = frozenset({"sessions_spawn", "spawn_session"})
# Models put `functions.` before a name when they make several calls at once, and clients put the
# name of an MCP server before those of its tools, as in `mcp__mesh__sessions_spawn`.
_NAMESPACES = re.compile(r"__|[./:]")
_PUNCTUATION = re.compile(r"[\W_]+")
# A key of JSON, also of JSON within a string.
_KEY = re.compile(r'"([^"\\]{1,64})\\*"\s*:')
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
ATTACHMENT_KEYS = frozenset({"attachments", "attachment", "inlineattachments"})
CALL_TEXTS = frozenset(
    {
        "task",
        "label",
        "agentid",
        "model",
        "thinking",
        "mode",
        "context",
        "cleanup",
        "runtime",
        "requestid",
        "mountpath",
    }
)
"""The arguments of a spawn whose texts are kept, as `plain_key` writes them."""
FILE_TEXTS = frozenset(
    {
        "name",
        "filename",
        "path",
        "encoding",
        "mimetype",
        "contenttype",
        "type",
        "sha256",
        "uploadid",
        "setid",
        "newname",
        "id",
        "label",
        "description",
    }
)
"""The members of an attachment whose texts are kept. Every other text may be its content."""


def may_hold_spawn_call(text: str) -> bool:
    """Return False only for a JSON text that surely has no spawn call.

    Most calls are of other tools and need no search.
    """
    return "\\u" in text or "spawn" in text.casefold()


def may_begin_spawn_call(text: str) -> bool:
    """Return False only for the beginning of a JSON text in which surely no spawn call has begun.

    The name of the tool may come behind the arguments, so a key of arguments is enough.
    """
    keys = (plain_key(match[1]) for match in _KEY.finditer(text))
    return may_hold_spawn_call(text) or any(key in ARGUMENT_KEYS | ATTACHMENT_KEYS for key in keys)


def is_spawn_tool(name: str) -> bool:
    """Return whether a tool name is that of the spawn tool, without case and namespace."""
    return _NAMESPACES.split(name.strip().casefold())[-1] in SPAWN_TOOLS


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


def has_arguments(block: Object) -> bool:
    """Return whether the block has arguments, itself or in an object that it wraps."""
    wrapped = (node for _, node in block.members if isinstance(node, Object))
    return any(plain_key(key) in ARGUMENT_KEYS for one in (block, *wrapped) for key, _ in one.members)


def plain_key(key: str) -> str:
    """Return the key without case and punctuation: `mimeType` and `MIME-Type` become `mimetype`."""
    return _PUNCTUATION.sub("", key.casefold())
