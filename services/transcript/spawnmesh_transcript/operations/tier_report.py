"""The actions of TierTranscript, and the counts that a call of it reports."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum


class TierAction(StrEnum):
    """The action of a call."""

    DRY_RUN = "DRY_RUN"
    APPLY = "APPLY"
    REVERT = "REVERT"


@dataclass(slots=True)
class TierReport:
    """The counts of one call, spelled as in the contract."""

    next_after_seq: int
    examined_entry_count: int = 0
    externalized_entry_count: int = 0
    cooled_entry_count: int = 0
    cooled_bytes: int = 0
    reverted_entry_count: int = 0
    reverted_bytes: int = 0
    failed_entry_count: int = 0
    failure_reason: str = ""
    failed_seq: int = 0
    condensed_entry_count: int = 0
    done: bool = False

    def failed(self, seqs: Collection[int], reason: str) -> None:
        """Count entries that could not be moved."""
        if seqs:
            self.failed_entry_count += len(seqs)
            self.failure_reason, self.failed_seq = reason, max(seqs)
