"""Appends: what decides whether one is made, and the outcome of one that is not."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from spawnmesh_transcript.domain.entries import Head, NewEntry
from spawnmesh_transcript.domain.prompt_window import Fence, fence_at
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.writers import Writer, is_current


@dataclass(frozen=True, slots=True)
class Append:
    """Entries for one transcript, prepared under the settings of this version.

    With a `fence`, they follow it directly. With `releases_writer`, the claim ends with them.
    """

    key: Key
    entries: Sequence[NewEntry]
    request_id: str
    content_hash: bytes
    writer: Writer
    settings_version: int
    fence: Fence | None = None
    releases_writer: bool = False

    @property
    def target_ids(self) -> list[str]:
        """The ids of the entries that its entries refer to."""
        return [entry.target_entry_id for entry in self.entries if entry.target_entry_id]

    def can_share_call(self, other: "Append") -> bool:
        """Return whether one call can make both appends to one transcript: nothing can refuse one
        of them alone, except that its key was used before.
        """
        return (
            self.writer == other.writer
            and self.settings_version == other.settings_version
            and self.request_id != other.request_id
            and not any(one.target_ids or one.fence or one.releases_writer for one in (self, other))
        )


def ends_of(appends: Sequence[Append]) -> list[int]:
    """Return where each append ends among the entries of all."""
    return list(accumulate(len(append.entries) for append in appends))


class AppendOutcome(StrEnum):
    """The outcome of an append."""

    SETTINGS_CHANGED = "SETTINGS_CHANGED"
    """The entries were prepared under other settings than those in force, or the transcript changed
    while the append was refused.
    """
    NOT_FOUND = "NOT_FOUND"
    """The transcript cannot be written."""
    KEY_REUSED = "KEY_REUSED"
    """The key was used with other content."""
    CLAIM_LOST = "CLAIM_LOST"
    """The claim is not the current one."""
    HEAD_MOVED = "HEAD_MOVED"
    """The fence is not at the head."""
    TARGET_NOT_FOUND = "TARGET_NOT_FOUND"
    """An entry refers to one that does not exist."""
    REPLAYED = "REPLAYED"
    """The key was used with the same content, which is in the transcript."""
    APPENDED = "APPENDED"
    BUSY = "BUSY"
    """Another transaction held the transcript, or the reason is not known. It wrote nothing."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The outcome of an append, with the fields that the outcome gives."""

    outcome: AppendOutcome
    head: Head | None = None
    first_seq: int = 0
    entry_ids: tuple[str, ...] = ()
    missing_entry_id: str = ""

    @property
    def is_committed(self) -> bool:
        """Return whether the entries are in the transcript, by this append or by the one it
        repeats.
        """
        return self.outcome in (AppendOutcome.APPENDED, AppendOutcome.REPLAYED)

    @property
    def is_busy(self) -> bool:
        """Return whether the append has to be repeated alone."""
        return self.outcome is AppendOutcome.BUSY


@dataclass(frozen=True, slots=True)
class EarlierAppend:
    """The append that used the key: its entries, and the head behind them under its claim."""

    content_hash: bytes
    first_seq: int
    entry_ids: tuple[str, ...]
    head: Head | None


@dataclass(frozen=True, slots=True)
class AppendState:
    """The values that decide about an append; `head` is None if no transcript can be written."""

    settings_version: int
    head: Head | None
    earlier: EarlierAppend | None
    missing_entry_id: str


def refuse_append(append: Append, state: AppendState) -> AppendResult | None:
    """Return the outcome of an append that a rule refuses; None if no rule does.

    A used key takes precedence over a lost claim and a missing target: a repeated append gets the
    answer of the first.
    """
    if append.settings_version != state.settings_version:
        return AppendResult(AppendOutcome.SETTINGS_CHANGED)
    if state.head is None:
        return AppendResult(AppendOutcome.NOT_FOUND)
    if repeated := repeat_append(append, state):
        return repeated
    claim = append.writer.claim
    if claim and not is_current(claim, state.head):
        return AppendResult(AppendOutcome.CLAIM_LOST, state.head)
    if append.fence and append.fence != fence_at(state.head):
        return AppendResult(AppendOutcome.HEAD_MOVED, state.head)
    if state.missing_entry_id:
        return AppendResult(
            AppendOutcome.TARGET_NOT_FOUND, state.head, missing_entry_id=state.missing_entry_id
        )
    return None


def repeat_append(append: Append, state: AppendState) -> AppendResult | None:
    """Return the outcome of an append whose key was used; None if it was not."""
    earlier = state.earlier
    if earlier is None:
        return None
    if earlier.content_hash != append.content_hash:
        return AppendResult(AppendOutcome.KEY_REUSED)
    return AppendResult(AppendOutcome.REPLAYED, earlier.head, earlier.first_seq, earlier.entry_ids)
