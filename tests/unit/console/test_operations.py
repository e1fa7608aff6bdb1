"""Operations in words."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from spawnmesh_console.domain.operations import (
    CompactionCounts,
    OperationKind,
    RecountingCounts,
    ShownOperation,
    TieringCounts,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
QUEUED = ShownOperation(
    "opr_1", "TierTranscript", OperationKind.TIER_DRY_RUN, "ses_1", "ada", False, 0, 0, "", NOW, None, False
)
RUNNING = replace(QUEUED, done_count=10, total_count=1200, counts=TieringCounts())
DONE = replace(RUNNING, is_done=True, done_count=1200, end_time=NOW)
FOUND = TieringCounts(externalized_entry_count=4, cooled_entry_count=3, cooled_bytes=2048)


@pytest.mark.parametrize(
    ("operation", "word", "icon", "is_live"),
    [
        (QUEUED, "starting", "queued", True),
        (RUNNING, "running", "running", True),
        (replace(RUNNING, retry_reason="DEPENDENCY_UNAVAILABLE"), "tries again", "warning", True),
        (replace(RUNNING, is_cancelled=True, retry_reason="X"), "being cancelled", "stopped", True),
        (DONE, "done", "succeeded", False),
        (replace(DONE, is_cancelled=True), "done", "succeeded", False),
        (replace(DONE, error_reason="CANCELLED", is_cancelled=True), "cancelled", "stopped", False),
        (replace(DONE, error_reason="NOT_FOUND", error_message="gone"), "failed", "failed", False),
    ],
)
def test_each_state_has_a_word_and_a_shape(
    operation: ShownOperation, word: str, icon: str, is_live: bool
) -> None:
    state = operation.state
    assert (state.word, state.icon, state.is_live) == (word, icon, is_live)


def test_a_failure_says_why_and_a_cancellation_does_not() -> None:
    failed = replace(DONE, error_reason="NOT_FOUND", error_message="no transcript")
    assert failed.why == "NOT_FOUND: no transcript"
    assert replace(failed, error_reason="CANCELLED").why == ""
    assert replace(RUNNING, retry_reason="DEPENDENCY_UNAVAILABLE").why == "DEPENDENCY_UNAVAILABLE"
    assert DONE.why == ""


def test_progress_without_a_whole_says_no_whole() -> None:
    assert (QUEUED.progress, RUNNING.progress, DONE.progress) == ("", "10 of 1,200", "1,200 of 1,200")
    assert replace(RUNNING, total_count=0).progress == "10"


def test_an_rpc_that_is_not_known_is_shown_by_its_name() -> None:
    other = replace(QUEUED, kind=OperationKind.OTHER, method="ImportTranscript")
    assert other.title == "ImportTranscript"
    assert len(replace(other, method="x" * 500).title) == 80
    assert replace(other, method="").title == "operation"
    titles = {replace(QUEUED, kind=kind).title for kind in OperationKind}
    assert len(titles) == len(OperationKind)


def test_a_dry_run_says_what_would_be_done_and_an_operation_what_was() -> None:
    would = dict(replace(DONE, counts=FOUND).facts)
    assert would == {
        "Would go to the blob store": "4 entries",
        "Would leave PostgreSQL": "2.0 KiB of 3 entries",
    }
    was = dict(replace(DONE, counts=FOUND, kind=OperationKind.TIER).facts)
    assert was == {"Put into the blob store": "4 entries", "Left PostgreSQL": "2.0 KiB of 3 entries"}
    rest = TieringCounts(
        condensed_entry_count=1,
        reverted_entry_count=1,
        reverted_bytes=10,
        failed_entry_count=2,
        failure_reason="CONFLICT",
    )
    assert dict(rest.facts(is_dry_run=False)) == {
        "Contexts can condense": "1 message",
        "Back in PostgreSQL": "1 entry, 10 B restored",
        "Failed": (
            "2 entries with CONFLICT; readers see them unchanged, and another operation tries them again"
        ),
    }
    assert QUEUED.facts == ()


def test_a_recount_says_what_became_of_the_tokens() -> None:
    counts = RecountingCounts(3, 1000, 1200, "cl100k_base")
    dry = replace(DONE, kind=OperationKind.RECOUNT_DRY_RUN, counts=counts)
    assert dict(dry.facts)["Their tokens"] == "were 1,000, would be 1,200"
    assert dict(replace(dry, kind=OperationKind.RECOUNT).facts)["Their tokens"] == "were 1,000, are 1,200"
    assert dict(RecountingCounts(token_vocabulary="o200k_base").facts(is_dry_run=True)) == {
        "Vocabulary": "o200k_base"
    }


@pytest.mark.parametrize(
    ("operation", "would_change"),
    [
        (replace(DONE, counts=FOUND), True),
        (replace(DONE, counts=TieringCounts(condensed_entry_count=1)), True),
        (DONE, False),
        (replace(RUNNING, counts=FOUND), False),
        (replace(DONE, counts=FOUND, kind=OperationKind.TIER), False),
        (replace(DONE, counts=FOUND, error_reason="CANCELLED"), False),
        (replace(DONE, counts=None), False),
        (replace(DONE, kind=OperationKind.RECOUNT_DRY_RUN, counts=RecountingCounts(1)), True),
        (replace(DONE, kind=OperationKind.RECOUNT_DRY_RUN, counts=RecountingCounts()), False),
    ],
)
def test_only_a_dry_run_that_has_found_something_can_be_confirmed(
    operation: ShownOperation, would_change: bool
) -> None:
    assert operation.would_change is would_change


def test_a_compaction_says_what_was_summarized_and_who_refused() -> None:
    compacted = replace(DONE, kind=OperationKind.COMPACTION, counts=CompactionCounts(1))
    assert (compacted.title, list(compacted.facts)) == ("Compaction", [("Summarized", "1 entry")])
    refused = replace(compacted, counts=CompactionCounts(0, "keeper", "under audit"))
    assert list(refused.facts) == [("Refused", "by keeper: under audit")]
    assert not refused.would_change
