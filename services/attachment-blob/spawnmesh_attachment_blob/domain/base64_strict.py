"""Base64 with one spelling for each byte string: standard alphabet, full padding, zero trailing bits."""

import re
from base64 import b64decode, b64encode
from enum import StrEnum

_SPELLING = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_WITHOUT_ASCII_WHITESPACE = str.maketrans("", "", " \t\n\r\v\f")


class Base64Problem(StrEnum):
    TOO_LARGE = "too_large"
    EMPTY = "empty"
    LENGTH = "length"
    ALPHABET = "alphabet"
    TRAILING_BITS = "trailing_bits"


class Base64Refused(ValueError):
    """The text is not strict base64, or spells too many bytes."""

    def __init__(self, problem: Base64Problem) -> None:
        self.problem = problem
        super().__init__(problem.value)


def decode_strict(text: str, *, max_bytes: int) -> bytes:
    """The bytes that `text` spells, ASCII whitespace aside; at most `max_bytes` of them.

    Raises Base64Refused. Text longer than twice the largest legal spelling is refused by its length alone, before
    anything is copied, so memory stays within a small multiple of `max_bytes` whatever comes in. An empty spelling is
    refused: it is a field that somebody forgot to fill far more often than an empty file.
    """
    max_spelled = (max_bytes + 2) // 3 * 4
    if len(text) > 2 * max_spelled:
        raise Base64Refused(Base64Problem.TOO_LARGE)
    if not text.isascii():
        raise Base64Refused(Base64Problem.ALPHABET)
    spelled = text.translate(_WITHOUT_ASCII_WHITESPACE)
    if not spelled:
        raise Base64Refused(Base64Problem.EMPTY)
    if len(spelled) % 4:
        raise Base64Refused(Base64Problem.LENGTH)
    if not _SPELLING.fullmatch(spelled):
        raise Base64Refused(Base64Problem.ALPHABET)
    last = spelled[-4:]
    if len(spelled) // 4 * 3 - last.count("=") > max_bytes:
        raise Base64Refused(Base64Problem.TOO_LARGE)
    # Only the last group can hide bits that decoding drops, so it alone is spelled again and compared.
    if b64encode(b64decode(last)).decode("ascii") != last:
        raise Base64Refused(Base64Problem.TRAILING_BITS)
    return b64decode(spelled)
