"""Entries and heads of transcripts."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.domain.turns import Role


class EntryKind(StrEnum):
    """Spelled as in the table."""

    HEADER = "HEADER"
    MESSAGE = "MESSAGE"
    NOTE = "NOTE"
    LABEL = "LABEL"
    MODEL_CHANGE = "MODEL_CHANGE"
    COMPACTION = "COMPACTION"
    BRANCH_SUMMARY = "BRANCH_SUMMARY"
    CUSTOM = "CUSTOM"
    OPAQUE = "OPAQUE"
    MIRROR = "MIRROR"


TURN_KINDS = (EntryKind.MESSAGE, EntryKind.NOTE)
"""The kinds of turns: what a model reads, and what totals count. Statements have them as literals,
so that the planner knows how many entries are turns.
"""


class Label(StrEnum):
    """The meaning of a label. Spelled as in the table."""

    SUPERSEDED = "SUPERSEDED"
    FINAL = "FINAL"


@dataclass(frozen=True, slots=True)
class WriterClaim:
    """The one writer: a run at one epoch."""

    run_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Head:
    """The newest position of a transcript.

    `writer_run_id` is empty before the first claim and after a release.
    """

    incarnation: str
    seq: int
    chain_hash: bytes
    writer_run_id: str
    writer_epoch: int


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry ready to be stored: its final body, and the columns that selection needs.

    `target_entry_id` is an entry of the same transcript that it refers to. An empty `entry_id` is
    generated; an empty `parent_entry_id` means the entry before it.
    """

    kind: EntryKind
    body: bytes
    token_count: int = 0
    role: Role | None = None
    calls: tuple[str, ...] = ()
    answers: str = ""
    is_synthetic: bool = False
    label: Label | None = None
    target_entry_id: str = ""
    entry_id: str = ""
    parent_entry_id: str = ""
    token_vocabulary: Vocabulary = Vocabulary.O200K
    """The vocabulary of `token_count`."""


class StoredEntry(
    NamedTuple
):  # A tuple, since a context has thousands and a dataclass takes five times as long to make.
    """An entry as it was committed."""

    entry_id: str
    parent_entry_id: str
    seq: int
    token_count: int
    writer_run_id: str
    writer_epoch: int
    writer_service: str
    writer_client: str
    create_time: datetime
    chain_hash: bytes
    body: bytes
    dropped_bytes: int = 0
    """The bytes by which the body is shorter because payloads of it are externalized."""


@dataclass(frozen=True, slots=True)
class PagePosition:
    """The seq after which a page begins, and the direction of the page."""

    seq: int
    is_backwards: bool = False

    def end_seq(self, head_seq: int, scan_limit: int) -> int:
        """Return the seq of the last entry at which the page looks, if it looks at so many."""
        if self.is_backwards:
            return max(1, min(self.seq, head_seq + 1) - scan_limit)
        return max(self.seq, min(head_seq, self.seq + scan_limit))

    def goes_on_behind(self, seq: int, head_seq: int) -> bool:
        """Return whether entries follow behind `seq` in the direction of the page."""
        return seq > 1 if self.is_backwards else seq < head_seq


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """The wanted kinds and message roles; empty means all."""

    kinds: frozenset[EntryKind] = frozenset()
    roles: frozenset[Role] = frozenset()
