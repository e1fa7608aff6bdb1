"""Check that the run itself wrote what a transcript got while its prompt window was open."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from spawnmesh_transcript.domain.chain import chain_hash
from spawnmesh_transcript.domain.entries import EntryKind, Head, WriterClaim
from spawnmesh_transcript.domain.turns import Role

_OWN_ROLES = frozenset({Role.ASSISTANT, Role.TOOL_RESULT, Role.BASH_EXECUTION})


class TakeoverCause(StrEnum):
    """The cause for which a window did not hold."""

    INCARNATION = "INCARNATION"
    """The transcript was deleted and created again."""
    SHRUNK = "SHRUNK"
    """Entries are missing."""
    REWRITTEN = "REWRITTEN"
    """An entry differs from the one that the hash chain was computed over."""
    NOT_CANONICAL = "NOT_CANONICAL"
    """An entry's body differs from what the service would have stored."""
    FOREIGN_WRITER = "FOREIGN_WRITER"
    """Another writer, or the run at another epoch, wrote it."""
    KIND = "KIND"
    """The run wrote it, but it is none of the run's replies and results."""


@dataclass(frozen=True, slots=True)
class Fence:
    """A position in one incarnation of a transcript."""

    incarnation: str
    seq: int
    chain_hash: bytes


def fence_at(head: Head) -> Fence:
    """Return the fence of a window that is opened at the head."""
    return Fence(head.incarnation, head.seq, head.chain_hash)


class WindowEntry(NamedTuple):
    """An entry as the window checks it; its body is complete if `dropped_bytes` is 0.

    `is_canonical` says whether the body is what the service stores for an entry of that kind and
    role.
    """

    seq: int
    entry_id: str
    parent_entry_id: str
    kind: EntryKind
    role: Role | None
    writer_run_id: str
    writer_epoch: int
    writer_service: str
    writer_client: str
    create_time: datetime
    chain_hash: bytes
    body: bytes
    dropped_bytes: int
    is_canonical: bool = False


@dataclass(frozen=True, slots=True)
class Offence:
    """The first offending seq, the kind of its entry (None if it is missing), and the cause."""

    seq: int
    kind: EntryKind | None
    cause: TakeoverCause


def fence_offence(
    fence: Fence, head: Head, before_hash: bytes, at_fence: WindowEntry | None
) -> Offence | None:
    """Check the transcript up to the fence.

    `at_fence` is the entry that stands there now, with its complete body, and `before_hash` the
    chain hash of the entry before it.
    """
    if head.incarnation != fence.incarnation:
        return Offence(1, EntryKind.HEADER, TakeoverCause.INCARNATION)
    if head.seq < fence.seq:
        return Offence(head.seq + 1, None, TakeoverCause.SHRUNK)
    if at_fence is None or at_fence.seq != fence.seq:
        return Offence(fence.seq, None, TakeoverCause.SHRUNK)
    if not at_fence.chain_hash == fence.chain_hash == chain_hash(before_hash, at_fence):
        return Offence(fence.seq, at_fence.kind, TakeoverCause.REWRITTEN)
    return None


def entry_offence(before: Fence, entry: WindowEntry, claim: WriterClaim) -> Offence | None:
    """Check the next entry after a position that holds."""
    if entry.seq != before.seq + 1:
        return Offence(before.seq + 1, None, TakeoverCause.SHRUNK)
    cause = _cause(before, entry, claim)
    return Offence(entry.seq, entry.kind, cause) if cause else None


def head_offence(reached: Fence, head: Head) -> Offence | None:
    """Check that no entry is missing after `reached`."""
    if reached.seq < head.seq:
        return Offence(reached.seq + 1, None, TakeoverCause.SHRUNK)
    if reached.chain_hash != head.chain_hash:
        return Offence(reached.seq, None, TakeoverCause.REWRITTEN)
    return None


def _cause(before: Fence, entry: WindowEntry, claim: WriterClaim) -> TakeoverCause | None:
    if chain_hash(before.chain_hash, entry) != entry.chain_hash:
        return TakeoverCause.REWRITTEN
    if not entry.is_canonical:
        return TakeoverCause.NOT_CANONICAL
    if entry.kind is EntryKind.MIRROR and entry.writer_client and not entry.writer_run_id:
        return None
    if (entry.writer_run_id, entry.writer_epoch) != (claim.run_id, claim.epoch):
        return TakeoverCause.FOREIGN_WRITER
    if entry.kind is not EntryKind.MESSAGE or entry.role not in _OWN_ROLES:
        return TakeoverCause.KIND
    return None
