"""Whether what a transcript got while a prompt window was open is the run's own."""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from spawnmesh_transcript.domain.entries import EntryKind, Head, WriterClaim
from spawnmesh_transcript.domain.turns import Role

_OWN_ROLES = frozenset({Role.ASSISTANT, Role.TOOL_RESULT, Role.BASH_EXECUTION})


class Cause(StrEnum):
    """Why a window did not hold."""

    INCARNATION = "INCARNATION"
    """The transcript was deleted and created again."""
    SHRUNK = "SHRUNK"
    """Entries are missing."""
    REWRITTEN = "REWRITTEN"
    """An entry is not the one that the chain was made over."""
    NOT_CANONICAL = "NOT_CANONICAL"
    """An entry does not say what the service would have stored."""
    FOREIGN_WRITER = "FOREIGN_WRITER"
    """Somebody else wrote it, or the run at another epoch."""
    KIND = "KIND"
    """The run wrote it, but it is none of its answers and results."""


@dataclass(frozen=True, slots=True)
class Fence:
    """A position in one incarnation of a transcript."""

    incarnation: str
    seq: int
    chain_hash: bytes


class WindowEntry(NamedTuple):
    """An entry as the window sees it; its body is whole where `dropped_bytes` is 0.

    `is_canonical` where the body is what the service stores for an entry of that kind and role.
    """

    seq: int
    kind: EntryKind
    role: Role | None
    writer_run_id: str
    writer_epoch: int
    writer_client: str
    chain_hash: bytes
    body: bytes
    dropped_bytes: int
    is_canonical: bool


@dataclass(frozen=True, slots=True)
class Offence:
    """What broke a window: the first seq, its kind (empty where the entry is missing), and why."""

    seq: int
    kind: EntryKind | None
    cause: Cause


def fence_offence(fence: Fence, head: Head, at_fence: WindowEntry | None) -> Offence | None:
    """What is wrong with the transcript up to the fence; `at_fence` is the entry that stands there now."""
    if head.incarnation != fence.incarnation:
        return Offence(1, EntryKind.HEADER, Cause.INCARNATION)
    if head.seq < fence.seq:
        return Offence(head.seq + 1, None, Cause.SHRUNK)
    if at_fence is None or at_fence.seq != fence.seq:
        return Offence(fence.seq, None, Cause.SHRUNK)
    if at_fence.chain_hash != fence.chain_hash:
        return Offence(fence.seq, at_fence.kind, Cause.REWRITTEN)
    return None


def entry_offence(before: Fence, entry: WindowEntry, claim: WriterClaim) -> Offence | None:
    """What is wrong with the next entry behind a position that holds."""
    if entry.seq != before.seq + 1:
        return Offence(before.seq + 1, None, Cause.SHRUNK)
    cause = _cause(before, entry, claim)
    return Offence(entry.seq, entry.kind, cause) if cause else None


def head_offence(reached: Fence, head: Head) -> Offence | None:
    """What is wrong when there are no entries behind `reached`."""
    if reached.seq < head.seq:
        return Offence(reached.seq + 1, None, Cause.SHRUNK)
    if reached.chain_hash != head.chain_hash:
        return Offence(reached.seq, None, Cause.REWRITTEN)
    return None


def _cause(before: Fence, entry: WindowEntry, claim: WriterClaim) -> Cause | None:
    if hashlib.sha256(before.chain_hash + entry.body).digest() != entry.chain_hash:
        return Cause.REWRITTEN
    if not entry.is_canonical:
        return Cause.NOT_CANONICAL
    if entry.kind is EntryKind.MIRROR and entry.writer_client and not entry.writer_run_id:
        return None
    if (entry.writer_run_id, entry.writer_epoch) != (claim.run_id, claim.epoch):
        return Cause.FOREIGN_WRITER
    if entry.kind is not EntryKind.MESSAGE or entry.role not in _OWN_ROLES:
        return Cause.KIND
    return None
