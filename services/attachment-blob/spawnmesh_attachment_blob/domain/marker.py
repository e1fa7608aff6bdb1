"""The marker that replaces a redacted attachment in a transcript."""

import json

_KEY = "$redacted"
_VALUE = "attachment"


def is_redaction_marker(content: str | bytes) -> bool:
    """Return whether the content is a JSON object whose `$redacted` is `attachment`.

    Other keys of the object do not matter.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        # Most content is large and not JSON, so search first. A key may be written with escapes.
        if "redacted" not in text and "\\u" not in text:
            return False
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get(_KEY) == _VALUE
