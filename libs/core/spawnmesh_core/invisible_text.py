"""Texts of strangers, without characters that people do not see."""

import re

# Control characters except line ends and tabs, and characters that reverse or hide text: people
# would see another text than models read.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def replace_invisible(text: str) -> str:
    """Replace each invisible character by U+FFFD."""
    return _UNSEEN.sub("\ufffd", text)
