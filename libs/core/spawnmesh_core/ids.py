"""Prefixed ids that sort by their creation time: `ses_01k…`.

An id is a prefix, `_`, and 26 characters of lower-case Crockford base32. These encode 48 bits of
milliseconds since 1970 and then 80 random bits.
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
"""The form of a tenant id, as the contract states it. The operator of the mesh chooses the id."""

AGENT_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
"""The form of an agent id, as the contract states it."""


class IdKind(StrEnum):
    """The kinds of resource that an id names; the value is the prefix of the id."""

    SESSION = "ses"
    RUN = "run"
    ATTACHMENT_SET = "att"
    UPLOAD = "upl"
    BLOB = "blb"
    ENTRY = "ent"
    DELIVERY = "del"
    INCARNATION = "inc"
    AUDIT_EVENT = "aud"
    OPERATION = "opr"
    APPROVAL = "apr"
    RESERVATION = "rsv"
    MODEL_CALL = "cal"
    EVENT = "evt"
    WEBHOOK = "whk"
    SCHEDULE = "sch"
    FIRING = "fir"
    TOKEN = "tok"  # noqa: S105 - a prefix, not a secret


def _encode(value: int) -> str:
    return "".join([_ALPHABET[value >> shift & 31] for shift in _SHIFTS])


def new_id(kind: IdKind) -> str:
    """Return a new id. Ids of the same millisecond differ and have no defined order."""
    milliseconds = time.time_ns() // 1_000_000
    return f"{kind.value}_{_encode(milliseconds << 80 | secrets.randbits(80))}"


def lowest_id(kind: IdKind, milliseconds: int) -> str:
    """Return the lowest id of this millisecond since 1970; the last id of all times is higher."""
    return f"{kind.value}_{_encode(max(0, milliseconds) << 80)}"


def derived_id(kind: IdKind, source_id: str) -> str:
    """Return the id of this kind that is derived from `source_id`.

    It is deterministic and sorts alike.

    Use it in a step that may be repeated after a crash: the repeat finds what the step created.
    """
    time_part = source_id.rpartition("_")[2][:10]
    digest = int.from_bytes(hashlib.sha256(f"{kind.value}:{source_id}".encode()).digest()[:10])
    return f"{kind.value}_{time_part}{_encode(digest)[10:]}"


def is_id(kind: IdKind, text: str) -> bool:
    """Return whether the text is a well-formed id of that kind."""
    prefix, _, body = text.partition("_")
    return prefix == kind.value and _BODY.fullmatch(body) is not None
