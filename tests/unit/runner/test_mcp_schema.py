"""Schemas of MCP tools, checks of arguments, and results as texts."""

from typing import Any

import pytest
from mcp_types import CallToolResult
from spawnmesh_runner.clients.mcp.result import result_text, truncate_with_note
from spawnmesh_runner.clients.mcp.schema import UnusableSchema, argument_checker, inline_schema
from spawnmesh_runner.domain.tools import ToolRefused


def objects(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_references_are_inlined_and_unneeded_keywords_dropped() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "x",
        **objects(
            a={"$ref": "#/$defs/a~1b", "description": "mine"},
            b={"type": "array", "items": {"$ref": "#/$defs/a~1b"}},
        ),
        "$defs": {"a/b": {"type": "string", "description": "theirs"}},
    }
    assert inline_schema(schema) == objects(
        a={"type": "string", "description": "mine"},
        b={"type": "array", "items": {"type": "string", "description": "theirs"}},
    )


def test_arguments_may_have_the_names_of_keywords() -> None:
    schema = objects(
        **{"$id": {"type": "string"}, "$ref": {"type": "string"}, "definitions": {"type": "integer"}}
    )
    assert inline_schema(schema) == schema
    with pytest.raises(ToolRefused):
        argument_checker(inline_schema(schema))({"definitions": "one"})


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "array"},
        objects(a={"type": 4}),
        objects(a={"required": "b"}),
        objects(a={"const": float("nan")}),
    ],
)
def test_a_schema_of_no_object_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(UnusableSchema):
        inline_schema(schema)


def test_arguments_are_checked_without_repeating_values() -> None:
    check = argument_checker(
        {
            **objects(a={"type": "integer", "maximum": 3}, b={"enum": ["x", "y"]}),
            "required": ["a"],
            "additionalProperties": False,
        }
    )
    assert check({"a": 3, "b": "x"}) == {"a": 3, "b": "x"}
    with pytest.raises(ToolRefused) as refused:
        check({"a": 4, "b": "sesame", "c": "sesame"})
    assert refused.value.reason == "INVALID_ARGUMENTS"
    text = str(refused.value)
    assert "a: does not fit maximum 3" in text
    assert 'b: does not fit enum ["x", "y"]' in text
    assert "c: there is no such argument" in text
    assert "sesame" not in text


def test_additional_arguments_are_checked() -> None:
    check = argument_checker({**objects(a={}), "additionalProperties": {"type": "integer"}})
    assert check({"a": "x", "b": 1})
    with pytest.raises(ToolRefused, match="b: does not fit type"):
        check({"b": "x"})


def answer(content: list[dict[str, Any]], structured: object = None) -> CallToolResult:
    return CallToolResult.model_validate({"content": content, "structuredContent": structured})


def shown(result: CallToolResult) -> str:
    return result_text(result, secrets=(), max_bytes=65536)


def test_structured_content_is_shown_once() -> None:
    text = {"type": "text", "text": '{"a": 1}'}
    assert shown(answer([text], {"a": 1})) == '{"a": 1}'
    assert shown(answer([{"type": "text", "text": "four"}], {"result": "four"})) == "four"
    assert shown(answer([{"type": "text", "text": "about it"}], {"a": "ä"})) == 'about it\n{"a": "ä"}'
    assert shown(answer([], {"a": 1})) == '{"a": 1}'
    assert shown(answer([])) == shown(answer([{"type": "text", "text": ""}])) == "[no content]"


def test_resources_are_shown_by_name() -> None:
    held = {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "content of a"}}
    packed = {"type": "resource", "resource": {"uri": "file:///b", "blob": "QUJD", "mimeType": "x/y"}}
    link = {"type": "resource_link", "uri": "https://example.com/c", "name": "c\nname"}
    sound = {"type": "audio", "data": "QUI=", "mimeType": "audio/wav"}
    assert shown(answer([held, packed, link, sound])).splitlines() == [
        "[resource file:///a.txt]",
        "content of a",
        "[resource file:///b, x/y, 3 bytes; not shown]",
        "[resource https://example.com/c, c name; not read]",
        "[audio, audio/wav, 2 bytes; not shown]",
    ]


def test_secrets_and_invisible_characters_are_replaced() -> None:
    result = answer([{"type": "text", "text": "key sesame-sesame\x00\u202eend"}])
    assert (
        result_text(result, secrets=["sesame-sesame"], max_bytes=999)
        == "key [$redacted:mcp_secret]\ufffd\ufffdend"
    )


@pytest.mark.parametrize(("text", "kept"), [("äää", "ää"), ("abcdefg", "abcde")])
def test_a_text_is_truncated_between_characters_with_a_note(text: str, kept: str) -> None:
    size = len(text.encode())
    note = f"[truncated: the first {len(kept.encode())} of {size} bytes; the rest was not kept]"
    assert truncate_with_note(text, 5) == f"{kept}\n{note}"
    assert truncate_with_note(text, size) == text
