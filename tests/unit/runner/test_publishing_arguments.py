"""The arguments with which a model publishes, fetches and hands over files."""

import json

import pytest
from pydantic import ValidationError
from spawnmesh_runner.tools.fetch_files import FETCH_FILES
from spawnmesh_runner.tools.publish_files import MAX_PATHS, PUBLISH_FILES
from spawnmesh_runner.tools.sessions_spawn import SESSIONS_SPAWN, SpawnAttachment

SET_ID = "att_01m8mj91px3pycm05sm3t8nc7y"


def test_a_path_is_published_under_its_last_part_or_under_a_given_name() -> None:
    paths = ["a.md", "out/b.md", {"path": "old/b.md", "name": "old-b.md"}, {"path": "c.md"}]
    files = PUBLISH_FILES.parse({"paths": paths}).files
    assert [(file.path, file.set_name) for file in files] == [
        ("a.md", "a.md"),
        ("out/b.md", "b.md"),
        ("old/b.md", "old-b.md"),
        ("c.md", "c.md"),
    ]


def test_the_model_knows_how_many_files_a_call_may_have() -> None:
    """The large ones are uploaded before a limit of the tenant refuses them."""
    assert len(PUBLISH_FILES.parse({"paths": ["a.md"] * 200}).files) == MAX_PATHS == 200
    assert "at most 200" in json.dumps(PUBLISH_FILES.arguments.model_json_schema())


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"paths": []},
        {"paths": "a.md"},
        {"paths": [7]},
        {"paths": [{"name": "a.md"}]},
        {"paths": [{"path": ""}]},
        {"paths": ["a"] * (MAX_PATHS + 1)},
        {"paths": ["a.md"], "name": "b.md"},
    ],
)
def test_paths_of_another_form_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PUBLISH_FILES.parse(arguments)


@pytest.mark.parametrize("set_id", ["", "att_1", SET_ID.upper(), f"{SET_ID}\n", f"../{SET_ID}"])
def test_only_the_id_of_a_set_is_fetched(set_id: str) -> None:
    assert FETCH_FILES.parse({"set_id": SET_ID}).set_id == SET_ID
    with pytest.raises(ValidationError):
        FETCH_FILES.parse({"set_id": set_id})


def attached(**fields: object) -> SpawnAttachment:
    spawn = SESSIONS_SPAWN.parse({"task": "t", "attachments": [fields]})
    [file] = spawn.attachments
    return file


def test_a_file_of_a_set_is_attached_by_reference() -> None:
    file = attached(set_id=SET_ID, name="a.md", new_name="b.md")
    assert (file.set_id, file.name, file.new_name) == (SET_ID, "a.md", "b.md")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"set_id": SET_ID, "name": "a", "content": ""}, "give one of content, path and set_id"),
        ({"set_id": SET_ID, "name": "a", "path": "a"}, "give one of content, path and set_id"),
        ({"name": "a", "path": "a", "content": "x"}, "give one of content, path and set_id"),
        ({"set_id": SET_ID, "name": "a", "path": "a", "content": "x"}, "give one of"),
        ({"name": "a"}, "give one of content, path and set_id"),
        ({"set_id": SET_ID}, "give the name that the file has in the set"),
        ({"path": "a", "new_name": "b"}, "new_name goes with set_id"),
        ({"set_id": "att_1", "name": "a"}, "String should match pattern"),
    ],
)
def test_an_attachment_of_another_form_is_refused(fields: dict[str, object], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        attached(**fields)
