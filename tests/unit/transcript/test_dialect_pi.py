"""Session files of pi and OpenClaw, and the recognition of dialects."""

import json
from typing import Any

import pytest
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_transcript.domain.dialects.recognition import Dialect
from spawnmesh_transcript.operations.session_files.session_file import SessionFile

from tests.support.transcript.dialects import (
    CLAUDE,
    CODEX,
    CODEX_BARE,
    OPENCLAW,
    PI,
    PI_HEADER,
    PI_V1,
    claude,
    codex,
    codex_said,
    pi,
    pi_said,
)
from tests.support.transcript.imported_lines import FILE, branch_of, described, read_file

EXPECTED = [
    "header",
    "model_change",
    "user old task é",
    "assistant old answer",
    "user kept task",
    "compaction what was done",
    "assistant read:t1",
    "tool_result first result image/png:600",
    "assistant done",
]


@pytest.mark.parametrize(("lines", "dialect"), [(PI, Dialect.PI), (PI_V1, Dialect.PI_V1)])
def test_both_versions_of_pi_become_the_same_entries(lines: list[Any], dialect: Dialect) -> None:
    progress, entries = read_file(lines)
    assert (progress.dialect, progress.is_branched) == (dialect, False)
    assert [described(entry) for entry in entries] == EXPECTED
    assert branch_of(progress, entries) == entries
    compaction = pb.EntryBody.FromString(entries[5].body).compaction
    assert compaction.first_kept_entry_id == entries[4].entry_id


def test_copies_of_delivered_messages_in_a_file_of_openclaw_are_mirrors() -> None:
    progress, entries = read_file(OPENCLAW)
    assert progress.dialect == Dialect.OPENCLAW
    assert [described(entry) for entry in entries] == [
        *EXPECTED,
        "custom",
        "mirror delivered copy",
        "user thanks",
    ]


def test_a_hook_message_of_version_2_is_a_message_of_an_extension() -> None:
    said = {"role": "hookMessage", "customType": "todo", "content": "remember"}
    _, entries = read_file([{**PI_HEADER, "version": 2}, pi("message", 1, message=said)])
    assert described(entries[1]) == "custom remember"


FIRST_LINES: list[tuple[Any, Dialect]] = [
    ({**PI_HEADER, "id": new_id(IdKind.SESSION)}, Dialect.SPAWNMESH),
    (PI_HEADER, Dialect.PI),
    ({**PI_HEADER, "version": 1}, Dialect.PI_V1),
    (CODEX[0], Dialect.CODEX),
    (CODEX_BARE[0], Dialect.CODEX),
    (CLAUDE[0], Dialect.CLAUDE_CODE),
    (CLAUDE[1], Dialect.CLAUDE_CODE),
    ({"type": "summary", "summary": "s", "leafUuid": "u"}, Dialect.CLAUDE_CODE),
    ({"type": "permission-mode", "permissionMode": "default", "sessionId": "5f0c"}, Dialect.CLAUDE_CODE),
]


@pytest.mark.parametrize(("line", "dialect"), FIRST_LINES)
def test_the_first_line_tells_the_dialect(line: Any, dialect: Dialect) -> None:
    assert read_file([line])[0].dialect == dialect


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (pi_said(1, "user", "x"), 'its type is "message"'),
        ({"a": 1}, "it has no type"),
        ("# Notes", "is not one JSON object"),
        ("[1]", "is not one JSON object"),
        ("", "is empty"),
    ],
)
def test_a_first_line_of_no_dialect_is_malformed_and_names_the_dialects(line: Any, named: str) -> None:
    progress, entries = read_file([line])
    assert entries == []
    [(number, problem)] = progress.malformed[:1]
    assert number == 1
    assert named in problem
    assert "pi (version 1 and later), OpenClaw, Claude Code and Codex" in problem


@pytest.mark.parametrize("lines", [CLAUDE, CODEX, PI, PI_V1])
def test_a_broken_line_is_malformed_by_its_number(lines: list[Any]) -> None:
    progress, _ = read_file([*lines[:3], '{"type":', *lines[3:]])
    assert [number for number, _ in progress.malformed] == [4]


SPAWN = {"task": "t", "attachments": [{"name": "a.txt", "content": "handed over"}]}


TOLD = json.dumps({"name": "sessions_spawn", "arguments": SPAWN})
CALLS: list[list[Any]] = [
    [
        claude("user", "u1", None, TOLD),
        claude(
            "assistant",
            "a1",
            "u1",
            [{"type": "tool_use", "id": "t1", "name": "sessions_spawn", "input": SPAWN}],
            message={"model": "m"},
        ),
    ],
    [
        codex_said("user", TOLD),
        codex(
            "response_item",
            type="function_call",
            name="sessions_spawn",
            arguments=json.dumps(SPAWN),
            call_id="t1",
        ),
    ],
]


@pytest.mark.parametrize("lines", CALLS, ids=["Claude Code", "Codex"])
def test_attachments_in_calls_of_the_spawn_tool_are_redacted_and_texts_about_them_are_not(
    lines: list[Any],
) -> None:
    _, entries = read_file(lines)
    assert "handed over" in described(entries[1])
    assert described(entries[2]) == "assistant sessions_spawn:t1"
    assert b"handed over" not in entries[2].body
    assert b"$redacted" in entries[2].body


def test_secrets_are_masked_in_texts_if_the_tenant_wants_it() -> None:
    masking = SessionFile(FILE.session_id, "i", mask_secrets=True)
    key = "sk-ant-api03-" + "a1B2c3D4e5" * 9
    _, entries = read_file([claude("user", "u1", None, f"key {key}")], masking)
    assert key.encode() not in entries[1].body
    assert "$redacted" in described(entries[1])
