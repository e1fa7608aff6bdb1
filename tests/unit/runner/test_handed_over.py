"""Files that are handed over in a call, before plugins."""

from spawnmesh_runner.handed_over import with_files, without_files

MARKER = {"$redacted": "attachment"}


def test_of_a_file_only_what_is_known_of_it_is_shown() -> None:
    files = [{"name": "a", "content": "secret", "encoding": "utf8"}, {"path": "b.txt"}, {"name": 7}, "secret"]
    shown = without_files("sessions_spawn", {"task": "t", "attachments": files, "note": "secret"})
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


def test_calls_of_other_tools_are_shown_but_for_contents_of_attachments() -> None:
    arguments = {"text": {"any": ["thing"]}, "attachments": [{"id": 1, "content": "secret"}, "x"]}
    assert without_files("mail", arguments) == {**arguments, "attachments": [{"id": 1, "content": MARKER}, "x"]}
    assert without_files("mail", {"attachments": "none"}) == {"attachments": "none"}
    assert without_files("mail", [1]) == [1]


def test_files_stay_as_they_were_also_those_that_were_shown_whole() -> None:
    arguments = {"task": "t", "attachments": [{"path": "b.txt"}]}
    shown = without_files("sessions_spawn", arguments)
    assert shown == arguments
    assert with_files({"task": "u", "attachments": []}, arguments, shown) == {**arguments, "task": "u"}
    assert with_files({"task": "u"}, arguments, shown) == {**arguments, "task": "u"}


def test_what_was_not_shown_cannot_be_changed() -> None:
    arguments = {"task": {"deep": "secret"}, "label": "l"}
    shown = without_files("sessions_spawn", arguments)
    assert with_files({"task": "u", "label": "m"}, arguments, shown) == {"task": {"deep": "secret"}, "label": "m"}
