"""The check of a transcript against its hash chain."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from spawnmesh_transcript.domain.chain import chain_hash
from spawnmesh_transcript.domain.entries import Head
from spawnmesh_transcript.domain.prompt_window import Fence


class MismatchCause(StrEnum):
    """The difference at a mismatch, spelled and explained as in the contract."""

    MISSING = "MISSING"
    ORDER = "ORDER"
    CONTENT = "CONTENT"
    PAYLOAD = "PAYLOAD"
    METADATA = "METADATA"
    HEAD = "HEAD"
    CHECKPOINT = "CHECKPOINT"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first seq that is not intact, and the entry that stands there, empty for none."""

    seq: int
    entry_id: str
    cause: MismatchCause


class EntryColumns(NamedTuple):
    """The columns that repeat what is in the body of an entry, as the table spells them."""

    kind: str
    role: str = ""
    calls: tuple[str, ...] = ()
    answers: str = ""
    is_synthetic: bool = False
    label: str = ""


class ChainEntry(NamedTuple):
    """An entry with all that is verified; its body is complete if `dropped_bytes` is 0."""

    seq: int
    entry_id: str
    parent_entry_id: str
    columns: EntryColumns
    target_seq: int | None
    writer_run_id: str
    writer_epoch: int
    writer_service: str
    writer_client: str
    create_time: datetime
    chain_hash: bytes
    body: bytes
    dropped_bytes: int


def start_mismatch(start: Fence, head: Head, entries: Sequence[ChainEntry]) -> Mismatch | None:
    """Check that the transcript is the one of a position; `entries` begin at the position."""
    if head.incarnation != start.incarnation:
        return Mismatch(1, "", MismatchCause.CHECKPOINT)
    if head.seq < start.seq:
        return Mismatch(head.seq + 1, "", MismatchCause.MISSING)
    if entries and entries[0].seq == start.seq and entries[0].chain_hash != start.chain_hash:
        return Mismatch(start.seq, entries[0].entry_id, MismatchCause.CHECKPOINT)
    return None


def is_next(reached: Fence, entry: ChainEntry) -> bool:
    """Return whether the entry has the next seq and continues the chain."""
    return entry.seq == reached.seq + 1 and entry.chain_hash == chain_hash(reached.chain_hash, entry)


def link_mismatch(reached: Fence, entry: ChainEntry, parent_seq: int | None) -> Mismatch:
    """Say why an entry does not continue the chain; `parent_seq` is None if it has no parent."""
    if entry.seq != reached.seq + 1:
        return Mismatch(reached.seq + 1, "", MismatchCause.MISSING)
    if entry.parent_entry_id and parent_seq is None:
        return Mismatch(entry.seq, entry.entry_id, MismatchCause.MISSING)
    if parent_seq is not None and parent_seq >= entry.seq:
        return Mismatch(entry.seq, entry.entry_id, MismatchCause.ORDER)
    return Mismatch(entry.seq, entry.entry_id, MismatchCause.CONTENT)


def end_mismatch(reached: Fence, head: Head) -> Mismatch | None:
    """Check that no entry is missing behind the last one, and that the head is its hash."""
    if reached.seq < head.seq:
        return Mismatch(reached.seq + 1, "", MismatchCause.MISSING)
    if reached.chain_hash != head.chain_hash:
        return Mismatch(reached.seq, "", MismatchCause.HEAD)
    return None
