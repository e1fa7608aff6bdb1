"""Permissions of writers: the entries that each may append."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

from spawnmesh_transcript.domain.entries import EntryKind, Head, NewEntry, WriterClaim
from spawnmesh_transcript.domain.turns import Role

UNOWNED_APPEND = "unowned_append"
"""The permission in a client's token to append without a claim."""


class Unowned(Enum):
    """The entries that may be appended without a claim."""

    USER_MESSAGE = auto()
    NOTE = auto()
    MIRROR = auto()


_OF_SERVICE = {"session": frozenset({Unowned.USER_MESSAGE, Unowned.NOTE})}
_OF_CLIENT = frozenset({Unowned.MIRROR})


@dataclass(frozen=True, slots=True)
class Writer:
    """The writer of an append: a claim, or the kinds in `unowned` without one.

    `service` or `client` names a writer that is no run.
    """

    claim: WriterClaim | None = None
    service: str = ""
    client: str = ""
    unowned: frozenset[Unowned] = frozenset()


def supersedes(claim: WriterClaim, head: Head) -> bool:
    """Return whether the claim may become the current one: it is higher than that of the head, or
    the same.
    """
    if claim.epoch == head.writer_epoch:
        return claim.run_id == head.writer_run_id
    return claim.epoch > head.writer_epoch


def is_current(claim: WriterClaim, head: Head) -> bool:
    """Return whether the claim is that of the head."""
    return (claim.run_id, claim.epoch) == (head.writer_run_id, head.writer_epoch)


def unowned_of_service(service: str) -> frozenset[Unowned]:
    """Return what a service may append without a claim."""
    return _OF_SERVICE.get(service, frozenset())


def unowned_of_client(permissions: Collection[str]) -> frozenset[Unowned]:
    """Return what a client may append, which never has a claim."""
    return _OF_CLIENT if UNOWNED_APPEND in permissions else frozenset()


def may_append(writer: Writer, entry: NewEntry) -> bool:
    """Return whether the writer may append the entry.

    A mirror is never written under a claim: it is a copy of a delivered message, not an action of
    the run.
    """
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
