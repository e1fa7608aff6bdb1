"""Session files of Claude Code."""

from typing import Any

import pytest
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_transcript.domain.dialects.recognition import Dialect

from tests.support.transcript.dialects import (
    CLAUDE,
    CLAUDE_COMPACTION,
    CLAUDE_NEW,
    CLAUDE_OLD,
    CLAUDE_SIDE,
    claude,
    claude_call,
    claude_result,
)
from tests.support.transcript.imported_lines import branch_of, described, read_file


def test_lines_become_messages_and_everything_else_is_kept() -> None:
    progress, entries = read_file(CLAUDE)
    assert progress.dialect == Dialect.CLAUDE_CODE
    assert [described(entry) for entry in entries] == [
        "header",
        "opaque file-history-snapshot",
        "user old task é",
        "assistant old answer",
        "user side task",
        "assistant side answer",
        "opaque system",
        "compaction what was done",
        "user look image/png:600",
        "assistant (hm|c2ln)",
        "assistant read:t1",
        "assistant read:t2",
        "tool_result first result",
        "tool_result second image/png:600",
        "opaque queue-operation",
        "assistant done",
    ]
    assert pb.EntryBody.FromString(entries[3].body).message.model == "anthropic/claude-x"
    assert [entry.answers for entry in entries[12:14]] == ["t1", "t2"]


def test_side_chains_are_off_the_branch_and_parallel_results_are_on_it() -> None:
    progress, entries = read_file(CLAUDE)
    assert progress.is_branched
    on_branch = [described(entry) for entry in branch_of(progress, entries)]
    assert "user side task" not in on_branch
    assert on_branch[:3] == ["header", "user old task é", "assistant old answer"]
    assert on_branch[-6:-1] == [
        "assistant (hm|c2ln)",
        "assistant read:t1",
        "assistant read:t2",
        "tool_result first result",
        "tool_result second image/png:600",
    ]


def test_a_side_chain_between_a_call_and_its_result_is_off_the_branch() -> None:
    lines = [
        *CLAUDE_OLD,
        claude_call("a2", "a1", "t1"),
        *CLAUDE_SIDE,
        claude_result("r1", "a2", "t1", "done"),
    ]
    progress, entries = read_file(lines)
    assert progress.is_branched
    assert [described(entry) for entry in branch_of(progress, entries)][1:] == [
        "user old task é",
        "assistant old answer",
        "assistant read:t1",
        "tool_result done",
    ]


def test_an_edited_prompt_begins_another_branch() -> None:
    edited = claude("user", "u9", "a1", "edited")
    progress, entries = read_file([*CLAUDE_OLD, claude("user", "u2", "a1", "first"), edited])
    assert progress.is_branched
    assert [described(entry) for entry in branch_of(progress, entries)][-2:] == [
        "assistant old answer",
        "user edited",
    ]


def test_the_file_of_a_sub_agent_has_its_side_chain_on_the_branch() -> None:
    progress, entries = read_file([{**line, "agentId": "a"} for line in CLAUDE_SIDE])
    assert not progress.is_branched
    assert [described(entry) for entry in branch_of(progress, entries)] == [
        "header",
        "user side task",
        "assistant side answer",
    ]


def test_a_side_chain_before_the_first_prompt_is_off_the_branch() -> None:
    progress, entries = read_file([*CLAUDE_SIDE, *CLAUDE_OLD[1:]])
    assert progress.is_branched
    assert [described(entry) for entry in branch_of(progress, entries)][1:] == [
        "user old task é",
        "assistant old answer",
    ]


def test_several_results_in_a_line_become_several_entries() -> None:
    results = [
        {"type": "tool_result", "tool_use_id": "t1", "content": "one", "is_error": True},
        {"type": "tool_result", "tool_use_id": "t2", "content": "two"},
        {"type": "text", "text": "and now"},
    ]
    lines = [*CLAUDE_OLD, claude_call("a2", "a1", "t1"), claude_call("a3", "a2", "t2")]
    progress, entries = read_file(
        [*lines, claude("user", "r", "a3", results), claude("user", "u", "r", "go on")]
    )
    assert [described(entry) for entry in branch_of(progress, entries)][-4:] == [
        "tool_result one",
        "tool_result two",
        "user and now",
        "user go on",
    ]
    assert pb.EntryBody.FromString(entries[-4].body).message.is_error
    assert not progress.is_branched


PRESERVED = [{"preservedSegment": {"headUuid": "a1", "anchorUuid": "c1", "tailUuid": "a1"}}]
PRESERVED.append({"preservedMessages": {"anchorUuid": "c1", "uuids": ["a1"]}})  # type: ignore[dict-item]


@pytest.mark.parametrize("metadata", PRESERVED)
def test_a_compaction_names_the_first_message_that_it_keeps(metadata: dict[str, Any]) -> None:
    boundary, summary = CLAUDE_COMPACTION
    kept = {**boundary, "compactMetadata": metadata}
    again = [
        {**boundary, "uuid": "b2", "logicalParentUuid": "c1"},
        {**summary, "uuid": "c2", "parentUuid": "b2"},
    ]
    progress, entries = read_file([*CLAUDE_OLD, kept, summary, *again])
    compactions = [
        pb.EntryBody.FromString(entry.body).compaction
        for entry in entries
        if "compaction" in described(entry)
    ]
    assert [one.first_kept_entry_id for one in compactions] == [entries[3].entry_id, ""]
    assert len(progress.compaction_ids) == 2


def test_what_no_model_read_is_kept_outside_of_contexts() -> None:
    lines = [
        *CLAUDE_OLD,
        claude("assistant", "x1", "a1", [{"type": "text", "text": "API Error"}], isApiErrorMessage=True),
        claude("user", "x2", "x1", "shown only", isVisibleInTranscriptOnly=True),
        claude("user", "x3", "x2", [{"type": "document", "source": {}}]),
        {"type": "attachment", "uuid": "x4", "parentUuid": "x3", "attachment": {"type": "todo"}},
        {"type": "something-new", "uuid": "x5", "parentUuid": "x4"},
    ]
    _, entries = read_file(lines)
    assert [described(entry) for entry in entries[4:]] == [
        "opaque assistant",
        "opaque user",
        "opaque user",
        "opaque attachment",
        "opaque something-new",
    ]


def test_a_line_that_is_written_twice_is_stored_once_as_a_message() -> None:
    lines = [*CLAUDE_NEW[:3], CLAUDE_NEW[2], claude_result("r1", "a3", "t1", "result")]
    progress, entries = read_file(lines)
    assert [described(entry) for entry in entries[3:]] == [
        "assistant read:t1",
        "opaque assistant",
        "tool_result result",
    ]
    assert [described(entry) for entry in branch_of(progress, entries)][-2:] == [
        "assistant read:t1",
        "tool_result result",
    ]


def test_messages_without_ids_follow_the_newest_line() -> None:
    bare = [
        {"type": line["type"], "sessionId": "5f0c", "message": line["message"]} for line in CLAUDE_OLD[1:]
    ]
    progress, entries = read_file(bare)
    assert progress.dialect == Dialect.CLAUDE_CODE
    assert [described(entry) for entry in branch_of(progress, entries)] == [
        "header",
        "user old task é",
        "assistant old answer",
    ]
