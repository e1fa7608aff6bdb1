"""Results of MCP tools as texts."""

from typing import Any

import pytest
from mcp_types import CallToolResult
from spawnmesh_runner.clients.mcp.result import result_text, truncate_with_note


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
