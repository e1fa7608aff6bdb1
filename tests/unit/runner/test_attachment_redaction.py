"""Redaction of files in a call before plugins see it."""

import json

import pytest
from spawnmesh_core.redaction_marker import marker_json
from spawnmesh_core.spawn_calls import CALL_TEXTS, FILE_TEXTS, plain_key
from spawnmesh_runner.loop.attachment_redaction import redact_files, restore_files
from spawnmesh_runner.tools.sessions_spawn import SessionsSpawn, SpawnAttachment

MARKER = json.loads(marker_json(b"secret"))


def test_the_texts_of_the_tool_are_kept() -> None:
    others = {plain_key(name) for name in SessionsSpawn.model_fields} - CALL_TEXTS
    assert others == {"attachments", "budget"}
    assert {plain_key(name) for name in SpawnAttachment.model_fields} - FILE_TEXTS == {"content"}


@pytest.mark.parametrize("name", ["sessions_spawn", "mcp__mesh__sessions_spawn"])
def test_only_known_arguments_of_a_spawn_are_shown(name: str) -> None:
    files = [{"name": "a", "content": "secret", "encoding": "utf8"}, {"path": "b.txt"}, {"name": 7}, "secret"]
    shown = redact_files(name, {"task": "t", "attachments": files, "note": "secret"})
    assert shown == {
        "task": "t",
        "attachments": [
            {"name": "a", "content": MARKER, "encoding": "utf8"},
            {"path": "b.txt"},
            {"name": 7},
            MARKER,
        ],
        "note": MARKER,
    }


def test_a_file_by_reference_is_shown() -> None:
    files = [{"set_id": "att_1", "name": "a.md", "new_name": "b.md"}]
    assert redact_files("sessions_spawn", {"attachments": files}) == {"attachments": files}


def test_a_budget_is_shown() -> None:
    budget = {"max_tokens": 200_000, "max_cost": 0.29, "max_model_calls": 40, "max_minutes": 1.5}
    assert redact_files("sessions_spawn", {"budget": budget}) == {"budget": budget}


def test_other_calls_are_shown_as_they_are_stored() -> None:
    arguments = {"text": {"any": ["thing"]}, "attachments": [{"id": 1, "content": "a letter"}, "x"]}
    assert redact_files("mail", arguments) is arguments


def test_files_are_always_restored() -> None:
    arguments = {"task": "t", "attachments": [{"path": "b.txt"}]}
    shown = redact_files("sessions_spawn", arguments)
    assert shown == arguments
    assert restore_files({"task": "u", "attachments": []}, arguments, shown) == {**arguments, "task": "u"}
    assert restore_files({"task": "u"}, arguments, shown) == {**arguments, "task": "u"}


def test_redacted_arguments_cannot_be_changed() -> None:
    arguments = {"task": {"deep": "secret"}, "label": "l"}
    shown = redact_files("sessions_spawn", arguments)
    assert shown == {"task": {"deep": MARKER}, "label": "l"}
    assert restore_files({"task": "u", "label": "m"}, arguments, shown) == {
        "task": {"deep": "secret"},
        "label": "m",
    }


def test_a_call_with_too_many_values_is_not_shown() -> None:
    assert redact_files("sessions_spawn", {"task": [[]] * 500_001}) == {"$redacted": "attachment"}
