"""Strict base64: standard alphabet, full padding, zero trailing bits.

Each byte string has one form.
"""

import re
from base64 import b64decode, b64encode
from enum import StrEnum

_ENCODED = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_REMOVE_ASCII_WHITESPACE = str.maketrans("", "", " \t\n\r\v\f")


class Base64Problem(StrEnum):
    TOO_LARGE = "too_large"
    EMPTY = "empty"
    LENGTH = "length"
    ALPHABET = "alphabet"
    TRAILING_BITS = "trailing_bits"


class Base64Refused(ValueError):
    """The text is not strict base64, or it encodes too many bytes."""

    def __init__(self, problem: Base64Problem) -> None:
        self.problem = problem
        super().__init__(problem.value)


def decode_strict(text: str, *, max_bytes: int) -> bytes:
    """Decode at most `max_bytes` bytes from `text`. ASCII whitespace is ignored.

    Raises Base64Refused. Text longer than twice the largest legal encoding is refused by its
    length, before any copy, so that memory stays within a small multiple of `max_bytes`. Empty
    text is refused: it is more often a field that the sender did not fill than an empty file.
    """
    max_encoded = (max_bytes + 2) // 3 * 4
    if len(text) > 2 * max_encoded:
        raise Base64Refused(Base64Problem.TOO_LARGE)
    if not text.isascii():
        raise Base64Refused(Base64Problem.ALPHABET)
    encoded = text.translate(_REMOVE_ASCII_WHITESPACE)
    if not encoded:
        raise Base64Refused(Base64Problem.EMPTY)
    if len(encoded) % 4:
        raise Base64Refused(Base64Problem.LENGTH)
    if not _ENCODED.fullmatch(encoded):
        raise Base64Refused(Base64Problem.ALPHABET)
    last = encoded[-4:]
    if len(encoded) // 4 * 3 - last.count("=") > max_bytes:
        raise Base64Refused(Base64Problem.TOO_LARGE)
    # Only the last group can hold bits that decoding drops. Encode it again and compare.
    if b64encode(b64decode(last)).decode("ascii") != last:
        raise Base64Refused(Base64Problem.TRAILING_BITS)
    return b64decode(encoded)
