"""Declarations of the built-in tools, and the arguments of their calls."""

import json

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh_runner.domain.tools import ToolRefused
from spawnmesh_runner.tools.calling.call_arguments import call_arguments
from spawnmesh_runner.tools.calling.registry import BUILT_IN, allowed, declaration, parameters_schema
from spawnmesh_runner.tools.calling.tool import Arguments, Tool, json_line
from spawnmesh_runner.tools.sessions_spawn import SESSIONS_SPAWN


def call(block: object) -> message_pb2.ToolCall:
    return message_pb2.ToolCall(tool_call_id="c", name="read_file", block_json=json.dumps(block))


def test_tools_are_those_of_the_profile_in_its_order() -> None:
    assert list(allowed(["write_file", "no_such_tool", "list_files"])) == ["write_file", "list_files"]
    assert allowed([]) == {}


def test_transcript_search_brings_transcript_describe() -> None:
    assert list(allowed(["transcript_search", "list_files"])) == [
        "transcript_search",
        "list_files",
        "transcript_describe",
    ]
    assert list(allowed(["transcript_describe", "transcript_search"])) == [
        "transcript_describe",
        "transcript_search",
    ]


@pytest.mark.parametrize("name", BUILT_IN)
def test_declarations_are_json_schema_without_references(name: str) -> None:
    declared = declaration(BUILT_IN[name])
    schema = json.loads(declared.parameters_json)
    assert (declared.name, schema["type"], schema["additionalProperties"]) == (name, "object", False)
    assert "$ref" not in declared.parameters_json
    assert "$defs" not in declared.parameters_json
    assert '"title"' not in declared.parameters_json
    assert declared.description


def test_a_tools_schema_is_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    dumps = json.dumps

    def recording(value: object) -> str:
        made.append(value)
        return dumps(value)

    async def execute(_scope: object, _arguments: object) -> dict[str, object]:
        raise AssertionError("the tool is not called")

    monkeypatch.setattr(json, "dumps", recording)
    tool = Tool("declared_each_turn", "Does nothing.", Arguments, execute, idempotent=True)
    first, second = declaration(tool), declaration(tool)
    assert first.parameters_json == second.parameters_json
    assert made == [parameters_schema(tool)]


def test_the_spawn_tool_declares_its_attachments_in_place() -> None:
    properties = parameters_schema(SESSIONS_SPAWN)["properties"]
    assert isinstance(properties, dict)
    assert set(properties["attachments"]["items"]["properties"]) == {
        "name",
        "content",
        "encoding",
        "path",
        "set_id",
        "new_name",
    }


@pytest.mark.parametrize(
    "block",
    [
        {"type": "toolCall", "arguments": {"path": "f"}},
        {"type": "toolUse", "input": {"path": "f"}},
        {"type": "functionCall", "arguments": '{"path": "f"}'},
    ],
)
def test_arguments_are_read_in_every_provider_shape(block: dict[str, object]) -> None:
    assert call_arguments(call(block)) == {"path": "f"}


@pytest.mark.parametrize("block", [{"type": "toolCall"}, {"arguments": ""}, {"arguments": None}])
def test_a_call_without_arguments_has_empty_arguments(block: dict[str, object]) -> None:
    assert call_arguments(call(block)) == {}


def test_truncated_arguments_are_refused() -> None:
    with pytest.raises(ToolRefused) as refused:
        call_arguments(call({"arguments": '{"path": "f'}))
    assert refused.value.reason == "INVALID_ARGUMENTS"


def test_a_file_name_that_is_not_utf8_can_be_sent() -> None:
    text = json_line({"name": "caf\udce9"})
    assert json.loads(text.encode("utf-8")) == {"name": "caf\udce9"}


@pytest.mark.parametrize(
    "attachment",
    [
        {"name": "a.txt"},
        {"name": "a.txt", "content": "x", "path": "a.txt"},
        {"name": "a.txt", "content": {"$redacted": "attachment", "sha256": "0", "bytes": 1}},
        {"name": "a.txt", "content": "x", "encoding": "utf16"},
    ],
)
def test_an_attachment_needs_exactly_one_usable_source(attachment: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="attachments"):
        SESSIONS_SPAWN.arguments.model_validate({"task": "t", "attachments": [attachment]})


def test_an_empty_file_can_be_attached() -> None:
    arguments = SESSIONS_SPAWN.arguments.model_validate(
        {"task": "t", "attachments": [{"name": "a.txt", "content": ""}]}
    )
    assert arguments.attachments[0].content == ""


NOTE = "[Left out: file_01k9z3v5qj8n2m4r6t8w0x2y4a_0_1 | 5,120 bytes. To read it, call transcript_describe.]"


@pytest.mark.parametrize("written", [{"content": NOTE}, json.dumps({"edits": [{"new": NOTE}]})])
def test_a_note_in_place_of_a_text_is_no_argument(written: object) -> None:
    block = {"type": "toolCall", "id": "c1", "name": "write_file", "arguments": written}
    with pytest.raises(ToolRefused, match="INVALID_ARGUMENTS"):
        call_arguments(message_pb2.ToolCall(name="write_file", block_json=json.dumps(block)))


def test_a_text_that_quotes_a_note_is_an_argument() -> None:
    written = {"content": f'The context had "{NOTE}" there.'}
    block = {"type": "toolCall", "id": "c1", "name": "write_file", "arguments": written}
    call = message_pb2.ToolCall(name="write_file", block_json=json.dumps(block))
    assert call_arguments(call) == written
