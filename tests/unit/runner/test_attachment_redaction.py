"""Redaction of files in a call before plugins see it."""

from spawnmesh_runner.loop.attachment_redaction import redact_files, restore_files

MARKER = {"$redacted": "attachment"}


def test_only_known_arguments_of_a_spawn_are_shown() -> None:
    files = [{"name": "a", "content": "secret", "encoding": "utf8"}, {"path": "b.txt"}, {"name": 7}, "secret"]
    shown = redact_files("sessions_spawn", {"task": "t", "attachments": files, "note": "secret"})
    assert shown == {
        "task": "t",
        "attachments": [
            {"name": "a", "content": MARKER, "encoding": "utf8"},
            {"path": "b.txt"},
            {"name": MARKER},
            MARKER,
        ],
        "note": MARKER,
    }


def test_other_calls_are_shown_without_attachment_contents() -> None:
    arguments = {"text": {"any": ["thing"]}, "attachments": [{"id": 1, "content": "secret"}, "x"]}
    assert redact_files("mail", arguments) == {
        **arguments,
        "attachments": [{"id": 1, "content": MARKER}, "x"],
    }
    assert redact_files("mail", {"attachments": "none"}) == {"attachments": "none"}
    assert redact_files("mail", [1]) == [1]


def test_files_are_always_restored() -> None:
    arguments = {"task": "t", "attachments": [{"path": "b.txt"}]}
    shown = redact_files("sessions_spawn", arguments)
    assert shown == arguments
    assert restore_files({"task": "u", "attachments": []}, arguments, shown) == {**arguments, "task": "u"}
    assert restore_files({"task": "u"}, arguments, shown) == {**arguments, "task": "u"}


def test_redacted_arguments_cannot_be_changed() -> None:
    arguments = {"task": {"deep": "secret"}, "label": "l"}
    shown = redact_files("sessions_spawn", arguments)
    assert restore_files({"task": "u", "label": "m"}, arguments, shown) == {
        "task": {"deep": "secret"},
        "label": "m",
    }
