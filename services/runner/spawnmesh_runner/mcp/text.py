"""Texts of servers, made fit to be shown."""

import re

# Control characters, but for line ends and tabs, and what turns or hides text: people would else see something else than models read.
_UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def plain(text: str) -> str:
    """The text with a replacement character for each that is not meant to be seen."""
    return _UNSEEN.sub("\ufffd", text)


def cut(text: str, max_bytes: int) -> tuple[str, int]:
    """As much of the text as the bytes allow, cut between characters, and how many bytes the whole has."""
    data = text.encode()
    return (text if len(data) <= max_bytes else data[:max_bytes].decode(errors="ignore")), len(data)
