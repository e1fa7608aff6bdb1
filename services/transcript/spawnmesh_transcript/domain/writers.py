"""Who may write what."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

from spawnmesh_transcript.domain.entries import EntryKind, NewEntry, WriterClaim
from spawnmesh_transcript.domain.turns import Role

UNOWNED_APPEND = "unowned_append"
"""The permission in a client's token to append without a claim."""


class Unowned(Enum):
    """What is ever written without a claim."""

    USER_MESSAGE = auto()
    NOTE = auto()
    MIRROR = auto()


_OF_SERVICE = {"session": frozenset({Unowned.USER_MESSAGE, Unowned.NOTE})}
_OF_CLIENT = frozenset({Unowned.MIRROR})


@dataclass(frozen=True, slots=True)
class Writer:
    """Who appends: under a claim, or without one what `unowned` lists. `service` or `client` says who it is where it is no run itself."""

    claim: WriterClaim | None = None
    service: str = ""
    client: str = ""
    unowned: frozenset[Unowned] = frozenset()


def unowned_of_service(service: str) -> frozenset[Unowned]:
    """What a service writes without a claim."""
    return _OF_SERVICE.get(service, frozenset())


def unowned_of_client(permissions: Collection[str]) -> frozenset[Unowned]:
    """What a client writes without a claim, which is all it ever writes."""
    return _OF_CLIENT if UNOWNED_APPEND in permissions else frozenset()


def may_append(writer: Writer, entry: NewEntry) -> bool:
    """Whether the entry is for this writer. A mirror is never written under a claim: it is the copy of something, not what the run did."""
    if writer.claim:
        return entry.kind is not EntryKind.MIRROR
    match entry.kind, entry.role:
        case EntryKind.NOTE, _:
            return Unowned.NOTE in writer.unowned
        case EntryKind.MIRROR, _:
            return Unowned.MIRROR in writer.unowned
        case EntryKind.MESSAGE, Role.USER:
            return Unowned.USER_MESSAGE in writer.unowned
        case _:
            return False
