"""Text of models, tools and people, made harmless for the eye.

HTML is escaped by the templates. This is about characters that a browser obeys or hides: control
characters, directions of writing, and characters without a shape.
"""

import re

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # Control characters, except tab and line feed.
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # Directions of writing.
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b\u180e\u200b\u2028\u2029\u2060-\u2065\u206a-\u206f"
    "\u3164\ufeff\uffa0\ufff9-\ufffb\U0001d173-\U0001d17a"  # No shape, or a break of the line.
    "\U000e0000-\U000e0fff"  # Tags and selectors: text that no person sees, and a model reads.
    "\ud800-\udfff]"  # Half of a pair, which cannot be sent.
)
_CONTROL_PICTURES = 0x2400
_DELETE = 0x7F


def harmless(text: str) -> str:
    """Return the text with a visible sign for each character that would be unseen or obeyed."""
    return _UNSEEN.sub(lambda found: _sign_of(ord(found[0])), text.replace("\r\n", "\n"))


def _sign_of(code: int) -> str:
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    return "\u2421" if code == _DELETE else f"\u27e8U+{code:04X}\u27e9"


def beginning(text: str, max_count: int) -> tuple[str, int]:
    """Return the beginning of the text, and the number of characters that it leaves out."""
    return (text, 0) if len(text) <= max_count else (text[:max_count], len(text) - max_count)
