"""Text of models, tools and people, made harmless for the eye.

HTML is escaped by the templates. This is about characters that a browser obeys or hides: control
characters, directions of writing, and characters without a shape.
"""

import re

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # Control characters, except tab and line feed.
    # The property Default_Ignorable_Code_Point of Unicode, with code points that have no character.
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\u2028\u2029\ufff9-\ufffb"  # Breaks of the line, and annotations.
    "\u2800\U00013430-\U00013440\U00016fe4\U0001d159"  # Empty shapes, and controls of old scripts.
    "\ud800-\udfff]+"  # Half of a pair, which cannot be sent.
)
_EMOJI = (
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u21aa\u231a-\u23ff\u24c2\u25aa-\u25fe\u2600-\u27bf"
    "\u2934\u2935\u2b05-\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
)
_JOINED_SCRIPTS = (  # Arabic and its relatives, and those that are written like Devanagari.
    "[\u0620-\u08ff\u0900-\u0dff\u1000-\u109f\u1780-\u17b3\u17b6-\u17df\u1820-\u18aa\u1b00-\u1b7f\u1cd0-\u1cff"
    "\ua8e0-\ua8ff\ua980-\ua9df\ufb50-\ufdff\ufe70-\ufefc\U00011000-\U00011fff]"
)
_USUAL = re.compile(
    f"{_EMOJI}[\ufe0e\ufe0f](?!\u200d)|{_EMOJI}\ufe0f?\u200d{_EMOJI}|[#*0-9]\ufe0f\u20e3|{_JOINED_SCRIPTS}[\u200c\u200d]"
)
"""A joiner or a selector with its neighbours, where Persian, Hindi or emoji need it."""

_CONTROL_PICTURES = 0x2400
_DELETE = 0x7F


def harmless(text: str) -> str:
    """Return the text with a visible sign for each character that would be unseen or obeyed.

    One joiner or selector stays where the script or the emoji before it needs one.
    """
    return _UNSEEN.sub(
        lambda run: run[0] if _is_usual(run) else "".join(_sign_of(ord(one)) for one in run[0]),
        text.replace("\r\n", "\n"),
    )


def without_unseen(text: str) -> str:
    """Return the text without the characters for which `harmless` has a sign."""
    return _UNSEEN.sub(lambda run: run[0] if _is_usual(run) else "", text)


def clipped(text: str, max_count: int) -> str:
    """Return the text in one line, made harmless, with a sign in place of what is too much."""
    shown, left_out = beginning(text, max_count)
    return harmless(" ".join(shown.split())) + ("…" if left_out else "")


def _is_usual(run: re.Match[str]) -> bool:
    if run.start() == 0 or (len(run[0]) > 1 and run[0] != "\ufe0f\u200d"):
        return False
    return _USUAL.match(run.string[run.start() - 1 : run.end() + 1]) is not None


def _sign_of(code: int) -> str:
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    return "\u2421" if code == _DELETE else f"\u27e8U+{code:04X}\u27e9"


def beginning(text: str, max_count: int) -> tuple[str, int]:
    """Return the beginning of the text, and the number of characters that it leaves out."""
    return (text, 0) if len(text) <= max_count else (text[:max_count], len(text) - max_count)
