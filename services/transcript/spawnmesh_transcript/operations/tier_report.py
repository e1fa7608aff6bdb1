"""The actions of TierTranscript, and the counts that one of its steps reports."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from spawnmesh.transcript.v1 import storage_service_pb2 as pb


class TierAction(StrEnum):
    """The action of an operation."""

    DRY_RUN = "DRY_RUN"
    APPLY = "APPLY"
    REVERT = "REVERT"


ACTIONS = {
    pb.TIER_ACTION_DRY_RUN: TierAction.DRY_RUN,
    pb.TIER_ACTION_APPLY: TierAction.APPLY,
    pb.TIER_ACTION_REVERT: TierAction.REVERT,
}


@dataclass(slots=True)
class TierReport:
    """The counts of one step, spelled as in the contract, and where the next step continues.

    `last_seq` is the last entry of the transcript.
    """

    next_after_seq: int
    last_seq: int = 0
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
