"""JSON that a person reads and edits: over several lines, with the same meaning."""

import json
import re
import sys

from spawnmesh_console.domain.shown_text import harmless

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_OPENING, _CLOSING = ("{", "["), ("}", "]")
_MAX_DEPTH = 12  # Deeper lines are not indented further: indents must not outgrow the text.

MAX_READABLE = 64 * 1024
"""Characters of the longest text that is parsed: other people wait while one is. The arguments of
a call that waits for an approval are never longer.
"""


def readable_json(text: str, max_count: int | None = None) -> str:
    """Return JSON over several lines. A text that is no JSON, or that has more than 65,536
    characters (`MAX_READABLE`), is returned as it is. With a `max_count`, only so many characters
    at the beginning of the result are made and returned.

    Numbers keep their digits. A character that would be unseen or obeyed is escaped, so that the
    text can be edited and means the same.
    """
    if not _is_json(text):
        return text if max_count is None else text[:max_count]
    parts: list[str] = []
    depth, previous = 0, ""
    left = sys.maxsize if max_count is None else max_count
    for found in _TOKEN.finditer(text):
        if left <= 0:
            break
        token = found[0]
        if token in _CLOSING:
            depth -= 1
        line = ""
        if previous == "," or (previous in _OPENING) != (token in _CLOSING):
            line = "\n" + "  " * min(depth, _MAX_DEPTH)
        part = line + _readable(token, left)
        parts.append(part)
        left -= len(part)
        if token in _OPENING:
            depth += 1
        previous = token
    return "".join(parts)[:max_count]


def texts_within(text: str) -> tuple[tuple[str, str], ...]:
    """Return the names and values of the object in a JSON text that are texts of several lines.
    There are none in a text that is too long to be parsed.
    """
    if not _is_json(text):
        return ()
    value = json.loads(text, parse_int=str, parse_float=str)
    found = value.items() if isinstance(value, dict) else ()
    return tuple((name, one) for name, one in found if isinstance(one, str) and "\n" in one.strip())


def _is_json(text: str) -> bool:
    if len(text) > MAX_READABLE:
        return False
    try:
        json.loads(text, parse_int=str, parse_float=str)  # Reading long numbers is slow, and refused.
    except (ValueError, RecursionError):
        return False
    return True


def _readable(part: str, max_count: int) -> str:
    """Return a part over no lines. At most its first `max_count` characters matter."""
    if part == ":":
        return ": "
    if not part.startswith('"') or ("\\u" not in part and _is_plain(part)):
        return part
    shown = json.dumps(json.loads(part), ensure_ascii=False)[:max_count]
    if _is_plain(shown) or (harmless(shown) == shown and shown.isprintable()):
        return shown
    return shown.translate({ord(char): _escaped(char) for char in set(shown)})


def _is_plain(text: str) -> bool:
    """Return whether all characters are seen. It is fast, and False for other scripts."""
    return text.isascii() and text.isprintable()


def _escaped(char: str) -> str:
    """Return the character, or its escape in JSON if it is unseen, obeyed, or half of a pair."""
    if _is_plain(char) or (harmless(char) == char and not 0xD800 <= ord(char) <= 0xDFFF):
        return char
    return json.dumps(char)[1:-1] if ord(char) > 0x7F else f"\\u{ord(char):04x}"
