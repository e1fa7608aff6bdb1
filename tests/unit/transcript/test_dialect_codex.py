"""Rollout files of Codex."""

from typing import Any

import pytest
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_transcript.domain.dialects.recognition import Dialect

from tests.support.transcript.dialects import CODEX, CODEX_BARE, CODEX_META, CODEX_OLD, codex, codex_said
from tests.support.transcript.imported_lines import branch_of, described, read_file


def test_items_become_messages_and_everything_else_is_kept() -> None:
    progress, entries = read_file(CODEX)
    assert (progress.dialect, progress.is_branched) == (Dialect.CODEX, False)
    assert [described(entry) for entry in entries] == [
        "header",
        "opaque session_meta",
        "opaque response_item",
        "user <environment_context>\n  <cwd>/w</cwd>\n</environment_context>",
        "user old task é",
        "opaque event_msg",
        "assistant old answer",
        "compaction old task é\n\nSummary: what was done",
        "opaque turn_context",
        "user look image/png:600",
        "assistant (hm|)",
        "assistant shell:t1",
        "assistant apply_patch:t2",
        "tool_result first result",
        "tool_result second",
        "opaque event_msg",
        "assistant done",
    ]
    call = pb.EntryBody.FromString(entries[11].body).message.content[0].tool_call
    assert '"arguments":"{\\"command\\":[\\"ls\\"]}"' in call.block_json


def test_files_of_bare_items_are_read_too() -> None:
    progress, entries = read_file(CODEX_BARE)
    assert progress.dialect == Dialect.CODEX
    assert [described(entry) for entry in entries[1:]] == [
        "opaque session_meta",
        "opaque state",
        "user task",
        "assistant shell:t1",
        "tool_result result",
        "assistant done",
    ]


def _rolled_back(count: Any) -> dict[str, Any]:
    return codex("event_msg", type="thread_rolled_back", num_turns=count)


TURNS = [
    line
    for number in (1, 2, 3)
    for line in (
        codex_said("user", "<environment_context>x</environment_context>"),
        codex_said("user", f"task {number}"),
        codex_said("assistant", f"answer {number}"),
    )
]


@pytest.mark.parametrize(
    ("count", "kept"),
    [(1, ["task 1", "task 2"]), (2, ["task 1"]), (3, []), (9, []), (0, ["task 1", "task 2", "task 3"])],
)
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_rollback_leaves_the_newest_turns_off_the_branch(
    count: int, kept: list[str], goes_on: bool
) -> None:
    more = [codex_said("user", "other task")] if goes_on else []
    progress, entries = read_file([CODEX_META, *TURNS, _rolled_back(count), *more])
    on_branch = [described(entry) for entry in branch_of(progress, entries)]
    expected = [f"user {task}" for task in kept] + (["user other task"] if goes_on else [])
    assert [line for line in on_branch if "task" in line] == expected
    assert progress.is_branched is bool(count)


def test_two_rollbacks_add_up() -> None:
    progress, entries = read_file([CODEX_META, *TURNS, _rolled_back(1), _rolled_back(1)])
    on_branch = [described(entry) for entry in branch_of(progress, entries)]
    assert [line for line in on_branch if "task" in line] == ["user task 1"]


@pytest.mark.parametrize(
    ("payload", "summary"),
    [
        ({"message": "the summary"}, "the summary"),
        ({"message": "the summary", "replacement_history": []}, "the summary"),
        ({"message": ""}, None),
        (
            {
                "message": "",
                "replacement_history": [
                    codex_said("user", "task")["payload"],
                    {"type": "compaction", "encrypted_content": "gAAA"},
                ],
            },
            None,
        ),
    ],
)
def test_a_compaction_without_a_readable_summary_replaces_nothing(
    payload: dict[str, Any], summary: str | None
) -> None:
    progress, entries = read_file([*CODEX_OLD, codex("compacted", **payload)])
    assert described(entries[-1]) == (f"compaction {summary}" if summary else "opaque compacted")
    assert len(progress.compaction_ids) == (1 if summary else 0)


@pytest.mark.parametrize(
    ("output", "expected", "is_error"),
    [
        ("text", "tool_result text", False),
        ({"content": "text", "success": False}, "tool_result text", True),
        ([{"type": "input_text", "text": "text"}], "tool_result text", False),
        (None, "tool_result", False),
    ],
)
def test_outputs_of_every_shape_become_results(output: Any, expected: str, is_error: bool) -> None:
    line = codex("response_item", type="function_call_output", call_id="t1", output=output)
    _, entries = read_file([CODEX_META, line])
    assert described(entries[-1]) == expected
    assert pb.EntryBody.FromString(entries[-1].body).message.is_error is is_error


def test_a_result_without_a_call_id_is_kept_outside_of_contexts() -> None:
    line = codex("response_item", type="function_call_output", output="text")
    _, entries = read_file([CODEX_META, line])
    assert described(entries[-1]) == "opaque response_item"
