"""Names of images in a prompt, and the image types that models read."""

import re
from collections.abc import Collection

_MAX_NAMES = 64
_MAX_NAME_BYTES = 1024

# A name is cut out of a longer one by ASCII alone: Chinese and Japanese put no blanks around it.
_BEGIN = r"(?<![A-Za-z0-9_/\\.-])"
_END = r"(?![A-Za-z0-9_/\\-]|\.[A-Za-z0-9])"
_EXTENSION = re.compile(rf"\.(?:png|jpe?g|gif|webp){_END}", re.IGNORECASE)
_BREAKS = frozenset(" \t\r\n\"'`<>|()[]{},;*?=:")
_SIGNATURES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
)


def names_image(text: str) -> bool:
    """Return True if the text has a word with an image's extension."""
    return _EXTENSION.search(text) is not None


def named_paths(prompt: str, attachments: Collection[str], rel_dir: str) -> list[tuple[str, str]]:
    """Return the names in the prompt with their workspace paths, in order, each path once."""
    begin_or_dir = f"(?:{_BEGIN}|(?<={re.escape(rel_dir)}/))"
    found = [
        (match.start(), name, f"{rel_dir}/{name}")
        for name in attachments
        if _EXTENSION.search(name) and (match := re.search(f"{begin_or_dir}{re.escape(name)}{_END}", prompt))
    ]
    for match in list(_EXTENSION.finditer(prompt))[:_MAX_NAMES]:
        begin = match.start()
        while begin and prompt[begin - 1] not in _BREAKS and match.end() - begin < _MAX_NAME_BYTES:
            begin -= 1
        name = prompt[begin : match.end()]
        found.append((begin, name, name.removeprefix("./")))
    paths: dict[str, str] = {}
    for _, name, path in sorted(found, key=lambda one: one[0]):
        if len(name.encode("utf-8", "replace")) <= _MAX_NAME_BYTES:
            paths.setdefault(path, name)
    return [(name, path) for path, name in paths.items()]


def mime_type_of(head: bytes) -> str:
    """Return the image type by the file's first bytes; empty for types that models do not read."""
    return next((mime_type for signature, mime_type in _SIGNATURES if signature.match(head)), "")
