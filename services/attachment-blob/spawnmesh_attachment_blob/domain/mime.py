"""MIME types as senders give them: stored and shown, never trusted."""

import unicodedata

MAX_MIME_TYPE_CHARS = 127
_UNSEEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def mime_type_problem(mime_type: str) -> str | None:
    """Describe the problem of a MIME type without quoting it; None for a valid or empty one."""
    if len(mime_type) > MAX_MIME_TYPE_CHARS:
        return f"has more than {MAX_MIME_TYPE_CHARS} characters"
    if any(unicodedata.category(character) in _UNSEEN_CATEGORIES for character in mime_type):
        return "has control characters"
    return None
