"""Prefixed ids that sort by the time they were made: `ses_01k…`.

An id is a prefix, `_`, and 26 characters of lower-case Crockford base32: 48 bits of milliseconds since 1970, then 80 random bits.
"""

import hashlib
import re
import secrets
import time
from enum import StrEnum

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_SHIFTS = tuple(range(125, -1, -5))
_BODY = re.compile(r"[0-7][0-9a-hjkmnp-tv-z]{25}")

TENANT_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,37}[a-z0-9]")
"""What a tenant may be called, as the contract has it. Its operator gives the name; nothing is derived from it but names of its own."""


class IdKind(StrEnum):
    """What an id names; the value is its prefix."""

    SESSION = "ses"
    RUN = "run"
    ATTACHMENT_SET = "att"
    UPLOAD = "upl"
    BLOB = "blb"
    ENTRY = "ent"
    DELIVERY = "del"
    INCARNATION = "inc"


def _encode(value: int) -> str:
    return "".join([_ALPHABET[value >> shift & 31] for shift in _SHIFTS])


def new_id(kind: IdKind) -> str:
    """A fresh id. Two made in one millisecond differ and sort in no particular order."""
    milliseconds = time.time_ns() // 1_000_000
    return f"{kind.value}_{_encode(milliseconds << 80 | secrets.randbits(80))}"


def derived_id(kind: IdKind, source_id: str) -> str:
    """The id of this kind that belongs to another id: always the same, and sorting like it.

    A step that may be repeated after a crash names what it makes this way, so that the repeat finds it.
    """
    time_part = source_id.rpartition("_")[2][:10]
    digest = int.from_bytes(hashlib.sha256(f"{kind.value}:{source_id}".encode()).digest()[:10])
    return f"{kind.value}_{time_part}{_encode(digest)[10:]}"


def is_id(kind: IdKind, text: str) -> bool:
    """Whether the text is a well-formed id of that kind."""
    prefix, _, body = text.partition("_")
    return prefix == kind.value and _BODY.fullmatch(body) is not None
