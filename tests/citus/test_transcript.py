"""Contract tests of the transcript service, on a cluster: writers, appends and contexts."""

import pytest

from tests.contract.transcript.context.test_context import (
    test_AssembleContext__a_short_transcript_is_returned_as_it_was_appended,
    test_AssembleContext__results_are_put_behind_their_calls,
    test_AssembleContext__scans_on_if_the_first_scan_was_too_short,
    test_AssembleContext__superseded_drafts_are_left_out,
    test_AssembleContext__the_newest_that_fit_and_the_newest_user_message,
)
from tests.contract.transcript.entries.test_append import (
    test_AppendEntries__a_label_marks_an_entry_of_the_same_transcript,
    test_AppendEntries__a_takeover_in_the_middle_of_appends_leaves_no_late_entry,
    test_AppendEntries__answers_with_the_position_of_each_entry,
    test_AppendEntries__any_sequence_of_appends_is_dense_chained_and_applied_once,
    test_AppendEntries__eight_appenders_lose_nothing,
    test_AppendEntries__same_key_other_entries_is_refused,
    test_AppendEntries__twenty_calls_with_one_key_append_once,
)
from tests.contract.transcript.live.test_draft_pieces import (
    test_WatchTranscript__thinking_and_calls_of_tools_come_piece_by_piece,
)
from tests.contract.transcript.live.test_drafts import (
    test_WatchTranscript__a_draft_becomes_the_entry_that_has_its_text,
)
from tests.contract.transcript.writers.test_writers import (
    test_AcquireWriter__racing_claims_leave_the_highest,
    test_CreateTranscript__a_fork_copies_messages_with_their_results,
    test_ReleaseWriter__ends_the_claim_for_good,
)
from tests.support.transcript.fixtures import (
    service,
    session,
)

pytestmark = pytest.mark.long_citus

__all__ = [
    "service",
    "session",
    "test_AcquireWriter__racing_claims_leave_the_highest",
    "test_AppendEntries__a_label_marks_an_entry_of_the_same_transcript",
    "test_AppendEntries__a_takeover_in_the_middle_of_appends_leaves_no_late_entry",
    "test_AppendEntries__answers_with_the_position_of_each_entry",
    "test_AppendEntries__any_sequence_of_appends_is_dense_chained_and_applied_once",
    "test_AppendEntries__eight_appenders_lose_nothing",
    "test_AppendEntries__same_key_other_entries_is_refused",
    "test_AppendEntries__twenty_calls_with_one_key_append_once",
    "test_AssembleContext__a_short_transcript_is_returned_as_it_was_appended",
    "test_AssembleContext__results_are_put_behind_their_calls",
    "test_AssembleContext__scans_on_if_the_first_scan_was_too_short",
    "test_AssembleContext__superseded_drafts_are_left_out",
    "test_AssembleContext__the_newest_that_fit_and_the_newest_user_message",
    "test_CreateTranscript__a_fork_copies_messages_with_their_results",
    "test_ReleaseWriter__ends_the_claim_for_good",
    "test_WatchTranscript__a_draft_becomes_the_entry_that_has_its_text",
    "test_WatchTranscript__thinking_and_calls_of_tools_come_piece_by_piece",
]
