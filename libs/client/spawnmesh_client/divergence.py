"""Find the place where two transcripts go apart.

The transcripts are read as they are needed, so that their common beginning is in memory only page
by page.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from spawnmesh.transcript.v1.entry_pb2 import LABEL_KIND_SUPERSEDED, Entry

from spawnmesh_client.entry_fingerprints import Fingerprints

ReadEntries = Callable[[int], AsyncIterator[Entry]]
"""Read the entries of a transcript after this seq, oldest first."""


@dataclass(frozen=True, slots=True)
class CopiedBeginning:
    """One of two transcripts began with a copy of the other's messages.

    `up_to_seq` is the last entry that was copied from, or 0 if it is not known. `superseded` has
    the ids of the drafts that the copy leaves out.
    """

    source_is_a: bool
    up_to_seq: int = 0
    superseded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Divergence:
    """The common beginning of two transcripts, A and B, and the entries of each behind it.

    - `common_count` entries say the same, and `common_message_count` of them are messages.
      `common_seq_a` and `common_seq_b` are the last ones of them, or 0.
    - `left_out_count` messages of the source are before the first one that a fork has copied.
    - `only_a` and `only_b` are cut after the limit. `superseded` has the ids of the drafts in them
      that were rejected.
    """

    common_count: int
    common_message_count: int
    common_seq_a: int
    common_seq_b: int
    left_out_count: int
    only_a: tuple[Entry, ...]
    only_b: tuple[Entry, ...]
    is_cut_a: bool
    is_cut_b: bool
    superseded: frozenset[str]


class _Said(NamedTuple):
    entry: Entry
    fingerprint: bytes


class _Overlap(NamedTuple):
    """The longest beginning of a copy that the source has, and the place where it ends there."""

    length: int = 0
    source_seq: int = 0
    copy_seq: int = 0
    left_out_count: int = 0


async def find_divergence(
    read_a: ReadEntries,
    read_b: ReadEntries,
    *,
    copied: CopiedBeginning | None = None,
    max_entries: int,
) -> Divergence:
    """Compare two transcripts, and keep up to `max_entries` entries of each behind the common
    beginning.

    The entries of the source that a fork does not copy, such as notes, do not end its common
    beginning.
    """
    overlap = _Overlap()
    if copied is not None:
        source, copy = (read_a, read_b) if copied.source_is_a else (read_b, read_a)
        overlap = await _find_overlap(source, copy, copied)
    seqs = overlap.source_seq, overlap.copy_seq
    if copied is not None and not copied.source_is_a:
        seqs = overlap.copy_seq, overlap.source_seq
    count = message_count = overlap.length
    rejected: set[str] = set()
    a, b = _steps(read_a(seqs[0]), rejected), _steps(read_b(seqs[1]), rejected)
    while True:
        one, other = await anext(a, None), await anext(b, None)
        if one is None or other is None or one.fingerprint != other.fingerprint:
            break
        seqs = one.entry.seq, other.entry.seq
        count, message_count = count + 1, message_count + one.entry.body.HasField("message")
        rejected.clear()  # Nothing of the common beginning is kept.
    only_a, is_cut_a = await _rest(one, a, max_entries)
    only_b, is_cut_b = await _rest(other, b, max_entries)
    kept = {entry.entry_id for entry in (*only_a, *only_b)}
    return Divergence(
        count, message_count, *seqs, overlap.left_out_count, only_a, only_b, is_cut_a, is_cut_b,
        frozenset(rejected & kept),
    )  # fmt: skip


async def _steps(entries: AsyncIterator[Entry], rejected: set[str]) -> AsyncIterator[_Said]:
    """Yield the entries that say something. `rejected` gets the ids of superseded drafts."""
    fingerprints = Fingerprints()
    async for entry in entries:
        if entry.body.label.kind == LABEL_KIND_SUPERSEDED:
            rejected.add(entry.body.label.entry_id)
        fingerprint = fingerprints.of(entry)
        if fingerprint is not None:
            yield _Said(entry, fingerprint)


async def _rest(
    first: _Said | None, steps: AsyncIterator[_Said], max_entries: int
) -> tuple[tuple[Entry, ...], bool]:
    """Return the entries from the first one on, up to the limit, and whether there are more."""
    found: list[Entry] = []
    step = first
    while step is not None:
        if len(found) == max_entries:
            return tuple(found), True
        found.append(step.entry)
        step = await anext(steps, None)
    return tuple(found), False


async def _find_overlap(source: ReadEntries, copy: ReadEntries, copied: CopiedBeginning) -> _Overlap:
    """Return the longest beginning of the copy's messages that the source has, the newest such
    place of it.

    The source is searched as by Knuth, Morris and Pratt. A copy begins late in the source if the
    source was too long for it.
    """
    messages, matched, count = _ForkBeginning(copy(0)), 0, 0
    best = _Overlap()
    async for step in _messages(source(0), copied):
        count += 1
        matched = await messages.extend(matched, step.fingerprint)
        if matched and matched >= best.length:
            best = _Overlap(matched, step.entry.seq, messages.seqs[matched - 1], count - matched)
    if copied.up_to_seq and best.length and best.left_out_count + best.length == count:
        return best._replace(source_seq=copied.up_to_seq)  # Nothing behind it was to be copied.
    return best


async def _messages(entries: AsyncIterator[Entry], copied: CopiedBeginning) -> AsyncIterator[_Said]:
    """Yield the messages of the source that a fork copies."""
    async for step in _steps(entries, set()):
        if copied.up_to_seq and step.entry.seq > copied.up_to_seq:
            return
        if step.entry.body.HasField("message") and step.entry.entry_id not in copied.superseded:
            yield step


@dataclass(slots=True)
class _ForkBeginning:
    """The entries with which a fork begins, read as far as the source has them.

    Only their fingerprints and seqs are kept. `_borders` has for each beginning the length of the
    longest shorter one with which it ends.
    """

    _entries: AsyncIterator[Entry]
    seqs: list[int] = field(default_factory=list)
    _fingerprints: list[bytes] = field(default_factory=list)
    _borders: list[int] = field(default_factory=list)
    _steps: AsyncIterator[_Said] | None = None
    _is_read: bool = False

    async def extend(self, matched: int, fingerprint: bytes) -> int:
        """Return the length of the longest beginning that ends with this message of the source,
        if the one of `matched` messages ended before it.
        """
        while True:
            if await self._has(matched) and self._fingerprints[matched] == fingerprint:
                return matched + 1
            if not matched:
                return 0
            matched = self._borders[matched - 1]

    async def _has(self, place: int) -> bool:
        """Read up to this place. Return False if the fork has no entry there."""
        if self._steps is None:
            self._steps = _steps(self._entries, set())
        while len(self.seqs) <= place and not self._is_read:
            step = await anext(self._steps, None)
            if step is None:
                self._is_read = True
            else:
                self._append(step)
        return place < len(self.seqs)

    def _append(self, step: _Said) -> None:
        border = self._borders[-1] if self._borders else 0
        while border and self._fingerprints[border] != step.fingerprint:
            border = self._borders[border - 1]
        if self._fingerprints and self._fingerprints[border] == step.fingerprint:
            border += 1
        self.seqs.append(step.entry.seq)
        self._fingerprints.append(step.fingerprint)
        self._borders.append(border)
