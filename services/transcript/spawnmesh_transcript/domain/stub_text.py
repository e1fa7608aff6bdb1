"""What a context has in place of a tool's large result: a header, at most one line of what it was, and how to read it.

The line fails closed: it has a path, a pattern or the id of a session, and only of a form in which nothing else hides. Commands, addresses and
whatever has another form are left out. Nothing that a tool or a model chose can make a line of its own, or a bracket.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from spawnmesh_core.secrets import mask_text

DESCRIBE_TOOL = "transcript_describe"
"""The tool that reads what a reference stands for."""

_SHOWN_CHARS = 200
_TOOL_NAME_CHARS = 64
_PATTERN_CHARS = 200

_PATH_KEYS = (
    *("path", "file_path", "filepath", "filePath", "file", "filename", "fileName", "notebook_path", "notebookPath"),
    *("target_file", "targetFile", "relative_path", "absolute_path", "directory", "dir"),
)
_PATTERN_KEYS = ("pattern", "regex", "glob")
_SESSION_KEYS = ("session_id", "sessionId")

_DRIVE = re.compile(r"[A-Za-z]:(?=[\\/])")
# Letters of any script; none of what separates the parts of an address, a query, a header or a command.
_PATH = re.compile(r"[\w./\\~+,@\[\]()-]+")
_AT_NAME = re.compile(r"(?:^|(?<=[/\\]))@(?=\w)")  # As package scopes begin; elsewhere it may end a password.
_HOST_FIRST = re.compile(r"[/\\]{2}|[\w-]+(?:\.[\w-]+)+(?=[/\\].)")
_PATTERN = re.compile(r"[\w.*?+|^$()\[\]{}\\/,-]+")
_SESSION = re.compile(
    r"(?:ses|run)_[0-9a-z]{26}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[A-Za-z]{1,24}(?:[_-][A-Za-z]{1,24}){0,3}|[0-9]{1,12}"
)
_OPAQUE_RUN = re.compile(
    r"[^\W_]{16,}"
)  # What a token looks like whose form nobody knows, if it has letters and digits.
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_.:/-]|(?<=/)/|/(?=/)")  # Two slashes begin what an address names.
_MIME_TYPE = re.compile(r"[a-z]+/[A-Za-z0-9][A-Za-z0-9.+-]*")
_NEUTRAL = str.maketrans({"[": "⟦", "]": "⟧"})


def stub_text(file_id: str, *, tool_name: str, size_bytes: int, about: str) -> str:
    """The reference. `about` is what `about_call` gave."""
    lines = [f"[Tool output {file_id} | tool={shown_tool_name(tool_name)} | {size_bytes:,} bytes]"]
    if about:
        lines.append(about)
    lines.append(f"To read it, call {DESCRIBE_TOOL} with that file_id.")
    return "\n".join(lines)


def shown_tool_name(name: str) -> str:
    """The name, with `_` for what no tool's name has; `unknown` for a blank one and for one that holds a secret."""
    name = name.strip()
    if not name or mask_text(name) != name:
        return "unknown"
    return _NOT_IN_NAME.sub("_", name[:_TOOL_NAME_CHARS])


def shown_mime_type(mime_type: str) -> str:
    """The type that an image says it has, where that has the form of one and is none of a text, as which nobody could read it."""
    is_shown = _MIME_TYPE.fullmatch(mime_type) and not mime_type.startswith("text/")
    return mime_type if is_shown else "application/octet-stream"


def about_call(tool_input: object) -> str:
    """One line of what a call was for, by its arguments; empty where they have nothing that may be shown.

    A path comes before a pattern, and a pattern before a session; the first that is there decides, whether it may be shown or not.
    """
    if not isinstance(tool_input, Mapping):
        return ""
    for label, keys, is_shown in _KINDS:
        for key in keys:
            value = tool_input.get(key)
            if value is None:
                continue
            return f"{label}: {_cut(value)}" if isinstance(value, str) and is_shown(value) else ""
    return ""


def _cut(text: str) -> str:
    short = text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"
    return short.translate(_NEUTRAL)


def _is_path(text: str) -> bool:
    rest = _DRIVE.sub("", text, count=1) if _DRIVE.match(text) else text
    return (
        _PATH.fullmatch(rest) is not None
        and "@" not in _AT_NAME.sub("", rest)
        and not _HOST_FIRST.match(rest)
        and not _may_hold_token(text)
    )


def _is_pattern(text: str) -> bool:
    return (
        len(text) <= _PATTERN_CHARS
        and _PATTERN.fullmatch(text) is not None
        and "//" not in text
        and not _may_hold_token(text)
    )


def _is_session(text: str) -> bool:
    return _SESSION.fullmatch(text) is not None


def _may_hold_token(text: str) -> bool:
    return mask_text(text) != text or any(map(_is_opaque, _OPAQUE_RUN.findall(text)))


def _is_opaque(run: str) -> bool:
    digits = sum(character.isdigit() for character in run)
    return digits >= 4 and len(run) - digits >= 4


_KINDS: tuple[tuple[str, tuple[str, ...], Callable[[str], bool]], ...] = (
    ("path", _PATH_KEYS, _is_path),
    ("pattern", _PATTERN_KEYS, _is_pattern),
    ("session", _SESSION_KEYS, _is_session),
)


def call_input(block: Mapping[str, Any]) -> object:
    """The arguments in a tool call of any provider's shape, as they are; None where there are none."""
    function = block.get("function")
    holders = (block, function) if isinstance(function, Mapping) else (block,)
    found = [holder[key] for holder in holders for key in ("arguments", "input", "args") if key in holder]
    return found[0] if found else None
