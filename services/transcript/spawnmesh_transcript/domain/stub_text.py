"""The text of a reference, which contexts show in place of a large tool result: a header, at most
one line about the call, and how to read the result.

The line fails closed: it shows a path, a pattern or a session id, and only in a form that can hide
nothing else. Commands, addresses and other forms are left out. A text that a tool or a model chose
can form no line of its own, and no bracket.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from spawnmesh_core.ids import IdKind, is_id
from spawnmesh_core.secrets import mask_text

DESCRIBE_TOOL = "transcript_describe"
"""The tool that reads the file of a reference."""

_SHOWN_CHARS = 200
_TOOL_NAME_CHARS = 64
_PATTERN_CHARS = 200

_PATH_KEYS = (
    *(
        "path",
        "file_path",
        "filepath",
        "filePath",
        "file",
        "filename",
        "fileName",
        "notebook_path",
        "notebookPath",
    ),
    *("target_file", "targetFile", "relative_path", "absolute_path", "directory", "dir"),
)
_PATTERN_KEYS = ("pattern", "regex", "glob")
_SESSION_KEYS = ("session_id", "sessionId")

_DRIVE = re.compile(r"[A-Za-z]:(?=[\\/])")
# Letters of any script; no separator of an address, a query, a header or a command.
_PATH = re.compile(r"[\w./\\~+,@\[\]()-]+")
# A package scope; elsewhere an @ may end a password.
_AT_NAME = re.compile(r"(?:^|(?<=[/\\]))@(?=\w)")
_HOST_FIRST = re.compile(r"[/\\]{2}|[\w-]+(?:\.[\w-]+)+(?=[/\\].)")
_PATTERN = re.compile(r"[\w.*?+|^$()\[\]{}\\/,-]+")
_SESSION = re.compile(
    r"(?:ses|run)_[0-9a-z]{26}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|[A-Za-z]{1,24}(?:[_-][A-Za-z]{1,24}){0,3}|[0-9]{1,12}"
)
_SEPARATOR = re.compile(r"[/\\]")
# May be a token of unknown form, if it has letters and digits.
_OPAQUE_RUN = re.compile(r"[^\W_]{16,}")
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_.:/-]|(?<=/)/|/(?=/)")  # Two slashes begin an address.
_MIME_TYPE = re.compile(r"[a-z]+/[A-Za-z0-9][A-Za-z0-9.+-]*")
_NEUTRAL = str.maketrans({"[": "⟦", "]": "⟧"})


def stub_text(file_id: str, *, tool_name: str, size_bytes: int, about: str) -> str:
    """Return the reference. `about` is the result of `about_call`."""
    lines = [f"[Tool output {file_id} | tool={shown_tool_name(tool_name)} | {size_bytes:,} bytes]"]
    if about:
        lines.append(about)
    lines.append(f"To read it, call {DESCRIBE_TOOL} with that file_id.")
    return "\n".join(lines)


def image_note(file_id: str, *, mime_type: str, size_bytes: int) -> str:
    """Return the note in place of an image that was shown earlier."""
    return f"[Image {file_id} | {shown_mime_type(mime_type)} | {size_bytes:,} bytes, not shown again]"


def shown_tool_name(name: str) -> str:
    """Return the name, with `_` for characters that no tool name has; `unknown` for a blank name
    and for one with a secret.
    """
    name = name.strip()
    if not name or mask_text(name) != name:
        return "unknown"
    return _NOT_IN_NAME.sub("_", name[:_TOOL_NAME_CHARS])


def shown_mime_type(mime_type: str) -> str:
    """Return an image's declared type, if it has the form of a type and is not a text type.

    As a text the image could not be read.
    """
    is_shown = _MIME_TYPE.fullmatch(mime_type) and not mime_type.startswith("text/")
    return mime_type if is_shown else "application/octet-stream"


def about_call(tool_input: object) -> str:
    """Return one line about a call by its arguments, empty if they have nothing that may be shown.

    A path comes before a pattern, and a pattern before a session. The first one that is present
    decides, even if it may not be shown.
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
    # The mesh puts attachments below a directory that is named by the id of their set.
    text = "/".join(part for part in _SEPARATOR.split(text) if not _is_mesh_id(part))
    return mask_text(text) != text or any(map(_is_opaque, _OPAQUE_RUN.findall(text)))


def _is_mesh_id(text: str) -> bool:
    return any(is_id(kind, text) for kind in IdKind)


def _is_opaque(run: str) -> bool:
    digits = sum(character.isdigit() for character in run)
    return digits >= 4 and len(run) - digits >= 4


_KINDS: tuple[tuple[str, tuple[str, ...], Callable[[str], bool]], ...] = (
    ("path", _PATH_KEYS, _is_path),
    ("pattern", _PATTERN_KEYS, _is_pattern),
    ("session", _SESSION_KEYS, _is_session),
)


def call_input(block: Mapping[str, Any]) -> object:
    """Return the arguments in a tool call of any provider's shape, None if there are none."""
    function = block.get("function")
    holders = (block, function) if isinstance(function, Mapping) else (block,)
    found = [holder[key] for holder in holders for key in ("arguments", "input", "args") if key in holder]
    return found[0] if found else None
