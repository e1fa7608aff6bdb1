"""The marker that stands for a redacted attachment in a transcript."""

import json

_KEY = "$redacted"
_VALUE = "attachment"


def is_redaction_marker(content: str | bytes) -> bool:
    """Whether the content is a JSON object whose `$redacted` is `attachment`, whatever else is in it."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        # Looked for first: most content is no JSON, and much of it is large. A key may be spelled with escapes.
        if "redacted" not in text and "\\u" not in text:
            return False
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get(_KEY) == _VALUE
