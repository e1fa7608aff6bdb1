"""Operations of transcripts in words: what each one does, its state, and what it has counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from spawnmesh_console.domain.amounts import counted, size_text
from spawnmesh_console.domain.states import ShownState

CANCELLED = "CANCELLED"
_MAX_METHOD = 80
Facts = Sequence[tuple[str, str]]
"""Names with their texts."""


class OperationKind(StrEnum):
    """The kinds of operations, in words. OTHER is for the RPCs that this console does not know."""

    TIER_DRY_RUN = "dry run of tiering"
    TIER = "tiering"
    REVERT = "return to PostgreSQL"
    RECOUNT_DRY_RUN = "dry run of a recount"
    RECOUNT = "recount of tokens"
    COMPACTION = "compaction"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class TieringCounts:
    """The counts of TierTranscript, named as in the contract."""

    externalized_entry_count: int = 0
    cooled_entry_count: int = 0
    cooled_bytes: int = 0
    reverted_entry_count: int = 0
    reverted_bytes: int = 0
    failed_entry_count: int = 0
    failure_reason: str = ""
    condensed_entry_count: int = 0

    @property
    def finds_something(self) -> bool:
        """True if an operation would change something."""
        return bool(self.externalized_entry_count or self.cooled_entry_count or self.condensed_entry_count)

    def facts(self, *, is_dry_run: bool) -> Facts:
        """Return the counts in words, without those that are 0."""
        names = _WOULD if is_dry_run else _DONE
        externalized = counted(self.externalized_entry_count, "entry", "entries")
        cooled = counted(self.cooled_entry_count, "entry", "entries")
        condensed = counted(self.condensed_entry_count, "message", "messages")
        reverted = counted(self.reverted_entry_count, "entry", "entries")
        failed = counted(self.failed_entry_count, "entry", "entries")
        texts = (
            (names[0], externalized, self.externalized_entry_count),
            (names[1], f"{size_text(self.cooled_bytes)} of {cooled}", self.cooled_entry_count),
            (names[2], condensed, self.condensed_entry_count),
            (
                "Back in PostgreSQL",
                f"{reverted}, {size_text(self.reverted_bytes)} restored",
                self.reverted_entry_count,
            ),
            (
                "Failed",
                f"{failed} with {self.failure_reason}; readers see them unchanged, and another operation "
                "tries them again",
                self.failed_entry_count,
            ),
        )
        return tuple((name, text) for name, text, count in texts if count)


_WOULD = ("Would go to the blob store", "Would leave PostgreSQL", "Contexts could condense")
_DONE = ("Put into the blob store", "Left PostgreSQL", "Contexts can condense")


@dataclass(frozen=True, slots=True)
class RecountingCounts:
    """The counts of RecountTranscript, named as in the contract."""

    recounted_entry_count: int = 0
    token_count_before: int = 0
    token_count_after: int = 0
    token_vocabulary: str = ""

    @property
    def finds_something(self) -> bool:
        """True if an operation would change something."""
        return self.recounted_entry_count > 0

    def facts(self, *, is_dry_run: bool) -> Facts:
        """Return the counts in words."""
        facts = [("Vocabulary", self.token_vocabulary)] if self.token_vocabulary else []
        if self.recounted_entry_count:
            entries = counted(self.recounted_entry_count, "entry", "entries")
            after = "would be" if is_dry_run else "are"
            facts += [
                ("Counted by another vocabulary", entries),
                ("Their tokens", f"were {self.token_count_before:,}, {after} {self.token_count_after:,}"),
            ]
        return facts


@dataclass(frozen=True, slots=True)
class CompactionCounts:
    """The response of CompactTranscript, named as in the contract."""

    summarized_entry_count: int = 0
    refused_by: str = ""
    refusal: str = ""

    @property
    def finds_something(self) -> bool:
        """True if something was summarized."""
        return self.summarized_entry_count > 0

    def facts(self, *, is_dry_run: bool) -> Facts:
        """Return the counts in words. There is no dry run."""
        entries = counted(self.summarized_entry_count, "entry", "entries")
        facts = [("Summarized", entries)] if self.summarized_entry_count else []
        if self.refused_by:
            facts.append(("Refused", f"by {self.refused_by}: {self.refusal}"))
        return facts


OperationCounts = TieringCounts | RecountingCounts | CompactionCounts


@dataclass(frozen=True, slots=True)
class ShownOperation:
    """An operation. `session_id` is that of the transcript that it works on; empty if it is not
    known. `counts` are None before the first step. `error_reason` and `error_message` are set if it
    failed or was cancelled.
    """

    operation_id: str
    method: str
    kind: OperationKind
    session_id: str
    subject: str
    is_done: bool
    done_count: int
    total_count: int
    retry_reason: str
    create_time: datetime
    end_time: datetime | None
    is_cancelled: bool
    counts: OperationCounts | None = None
    error_reason: str = ""
    error_message: str = ""

    @property
    def title(self) -> str:
        """Its kind in words."""
        if self.kind is OperationKind.OTHER:
            return self.method[:_MAX_METHOD] or "operation"
        return self.kind[:1].upper() + self.kind[1:]

    @property
    def is_dry_run(self) -> bool:
        """True if it changes nothing."""
        return self.kind in (OperationKind.TIER_DRY_RUN, OperationKind.RECOUNT_DRY_RUN)

    @property
    def state(self) -> ShownState:
        """Its state; the shape says it as well as the word."""
        if self.error_reason == CANCELLED:
            return ShownState("cancelled", "stopped")
        if self.error_reason:
            return ShownState("failed", "failed")
        if self.is_done:
            return ShownState("done", "succeeded")
        if self.is_cancelled:
            return ShownState("being cancelled", "stopped", is_live=True)
        if self.retry_reason:
            return ShownState("tries again", "warning", is_live=True)
        if not self.done_count and self.counts is None:
            return ShownState("starting", "queued", is_live=True)
        return ShownState("running", "running", is_live=True)

    @property
    def progress(self) -> str:
        """The entries that it has looked at. The whole is not known before the first step."""
        if not self.total_count:
            return f"{self.done_count:,}" if self.done_count else ""
        return f"{self.done_count:,} of {self.total_count:,}"

    @property
    def why(self) -> str:
        """The reason of its failure, or of the failure of its newest step."""
        if self.error_reason:
            return "" if self.error_reason == CANCELLED else f"{self.error_reason}: {self.error_message}"
        return self.retry_reason

    @property
    def facts(self) -> Facts:
        """Its counts in words."""
        return () if self.counts is None else self.counts.facts(is_dry_run=self.is_dry_run)

    @property
    def would_change(self) -> bool:
        """True for a dry run that has ended well, and found something to change."""
        is_known = self.is_dry_run and self.is_done and not self.error_reason
        return is_known and self.counts is not None and self.counts.finds_something
