"""JSON that a person reads and edits: over several lines, with the same meaning."""

import json
import re

from spawnmesh_console.domain.shown_text import harmless

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_OPENING, _CLOSING = ("{", "["), ("}", "]")
_MAX_DEPTH = 12  # Deeper lines are not indented further: indents must not outgrow the text.


def readable_json(text: str) -> str:
    """Return JSON over several lines; a text that is no JSON as it is.

    Numbers keep their digits. A character that would be unseen or obeyed is escaped, so that the
    text can be edited and means the same.
    """
    if not _is_json(text):
        return text
    parts: list[str] = []
    depth, previous = 0, ""
    for token in _TOKEN.findall(text):
        if token in _CLOSING:
            depth -= 1
        if previous == "," or (previous in _OPENING) != (token in _CLOSING):
            parts.append("\n" + "  " * min(depth, _MAX_DEPTH))
        parts.append(_readable(token))
        if token in _OPENING:
            depth += 1
        previous = token
    return "".join(parts)


def texts_within(text: str) -> tuple[tuple[str, str], ...]:
    """Return the names and values of the object in a JSON text that are texts of several lines."""
    if not _is_json(text):
        return ()
    value = json.loads(text)
    found = value.items() if isinstance(value, dict) else ()
    return tuple((name, one) for name, one in found if isinstance(one, str) and "\n" in one.strip())


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _readable(part: str) -> str:
    if part == ":":
        return ": "
    if not part.startswith('"') or ("\\u" not in part and _is_plain(part)):
        return part
    shown = json.dumps(json.loads(part), ensure_ascii=False)
    if _is_plain(shown) or (harmless(shown) == shown and shown.isprintable()):
        return shown
    return "".join(map(_escaped, shown))


def _is_plain(text: str) -> bool:
    """Return whether all characters are seen. It is fast, and False for other scripts."""
    return text.isascii() and text.isprintable()


def _escaped(char: str) -> str:
    """Return the character, or its escape in JSON if it is unseen, obeyed, or half of a pair."""
    if _is_plain(char) or (harmless(char) == char and not 0xD800 <= ord(char) <= 0xDFFF):
        return char
    return json.dumps(char)[1:-1] if ord(char) > 0x7F else f"\\u{ord(char):04x}"
