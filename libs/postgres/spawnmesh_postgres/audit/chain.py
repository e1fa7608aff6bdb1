"""The chain of events of one tenant: a change or a gap is found by its hashes.

The hash of an event is SHA-256 of the 32 bytes of the hash before it and then of a JSON array with
the fields of the event, in ASCII and without blanks. The first event follows 32 zero bytes.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import sha256

NO_HASH = bytes(32)
"""The hash before the first event."""

MAX_BATCH = 200
"""Events that are hashed in a row, for which the event loop takes some milliseconds."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ChainedEvent:
    """An event in its chain, without its hash. See the contract of AuditEvent."""

    tenant_id: str
    sequence: int
    event_id: str
    event_time: datetime
    last_time: datetime
    call_count: int
    method: str
    caller_kind: str
    subject: str
    token_id: str
    resources: Sequence[str]
    code: str
    reason: str
    trace_id: str
    peer: str


FIELDS = tuple(one.name for one in fields(ChainedEvent))
"""The fields of an event, in the order in which they are hashed."""


@dataclass(frozen=True, slots=True)
class Link:
    """A place in a chain: the event with this number has this hash."""

    sequence: int = 0
    hash: bytes = NO_HASH


class Defect(StrEnum):
    """The ways in which a place in a chain can be wrong."""

    CHANGED = "CHANGED"
    MISSING = "MISSING"


@dataclass(frozen=True, slots=True)
class ChainBreak:
    """The event that does not fit to those before it, or the missing last one."""

    tenant_id: str
    sequence: int
    defect: Defect


def event_hash(before: bytes, event: ChainedEvent) -> bytes:
    """Return the hash of an event that follows an event with the hash `before`."""
    values = [_plain(getattr(event, name)) for name in FIELDS]
    return sha256(before + json.dumps(values, separators=(",", ":")).encode()).digest()


def _plain(value: object) -> object:
    """Return a time as whole microseconds since 1970, and any other value as it is."""
    return (value - _EPOCH) // timedelta(microseconds=1) if isinstance(value, datetime) else value


def verify(start: Link, events: Iterable[tuple[ChainedEvent, bytes]]) -> tuple[Link, list[ChainBreak]]:
    """Follow the events, each with its stored hash, from `start` on.

    Return the last link and the places where the chain is broken. A broken place is reported once:
    the check goes on from the stored hash.
    """
    link = start
    breaks: list[ChainBreak] = []
    for event, stored in events:
        if event.sequence != link.sequence + 1:
            breaks.append(ChainBreak(event.tenant_id, event.sequence, Defect.MISSING))
        elif event_hash(link.hash, event) != stored:
            breaks.append(ChainBreak(event.tenant_id, event.sequence, Defect.CHANGED))
        link = Link(event.sequence, stored)
    return link, breaks


def verify_end(tenant_id: str, link: Link, head: Link) -> list[ChainBreak]:
    """Return what is wrong with a chain that ends at `link` and whose end is known as `head`."""
    if link == head:
        return []
    defect = Defect.MISSING if link.sequence < head.sequence else Defect.CHANGED
    return [ChainBreak(tenant_id, head.sequence, defect)]
