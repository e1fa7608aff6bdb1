"""An import redacts a line exactly as an append redacts the same message."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_core.json_text import NotJson
from spawnmesh_transcript.domain.redact import redact_block, redact_document, redact_line
from spawnmesh_transcript.domain.storable_json import MAX_STORED_DEPTH

SECRET = "SECRET-7f3a"
ARGUMENTS = {"task": "t", "attachments": [{"name": "a.txt", "content": SECRET}]}
CALL = {"type": "toolCall", "id": "c", "name": "sessions_spawn", "arguments": ARGUMENTS}
MENTION = json.dumps(CALL)

_values = st.recursive(
    st.none()
    | st.integers()
    | st.sampled_from(["x", SECRET, "sessions_spawn", MENTION, json.dumps(ARGUMENTS)]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "arguments", "input", "attachments", "content", "text", "calls"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)
_calls = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["toolCall", "toolUse", "functionCall", "tool_call", "tool_use", "function_call"]
        ),
        "id": st.just("c"),
        "name": st.sampled_from(["read", "sessions_spawn", "multi_tool_use.parallel", " Spawn_Session"]),
    },
    optional={"arguments": _values, "input": _values, "more": _values},
)


def _line(*blocks: Any, role: str = "assistant", **more: Any) -> str:
    said = {"role": role, "content": list(blocks), **more}
    return json.dumps({"type": "message", "id": "m1", "parentId": None, "message": said})


@given(_calls)
def test_a_call_is_redacted_as_an_append_does(block: dict[str, Any]) -> None:
    appended = redact_block(block["name"].strip(), json.dumps(block))
    imported = json.loads(redact_line(_line({"type": "text", "text": MENTION}, block)))
    assert imported["message"]["content"] == [{"type": "text", "text": MENTION}, json.loads(appended)]


@given(_values)
def test_unknown_blocks_and_lines_are_redacted_as_documents(value: Any) -> None:
    block = {"type": "hologram", "value": value}
    line = json.dumps({"type": "novel", "id": "m1", "message": {"role": "user", "content": value}})
    for text in (json.dumps(block), line):
        document = redact_document(text, is_object=True)
        assert redact_line(text) == document
    inside = json.loads(redact_line(_line(block)))["message"]["content"]
    assert inside == [json.loads(redact_document(json.dumps(block), is_object=True))]


LEFT_ALONE = {
    "text": _line({"type": "text", "text": MENTION}),
    "a string for a block": _line(MENTION),
    "thinking": _line({"type": "thinking", "thinking": MENTION, "thinkingSignature": MENTION}),
    "another signature": _line({"type": "thinking", "thinking": "t", "signature": MENTION}),
    "a user's content": json.dumps(
        {"type": "message", "id": "m", "message": {"role": "user", "content": MENTION}}
    ),
    "a result of the tool itself": _line(
        {"type": "text", "text": json.dumps(ARGUMENTS)},
        role="toolResult",
        toolCallId="c",
        toolName="sessions_spawn",
    ),
    "a command": json.dumps(
        {
            "type": "message",
            "id": "m",
            "message": {"role": "bashExecution", "command": MENTION, "output": MENTION},
        }
    ),
    "a message of a plugin": json.dumps(
        {"type": "custom_message", "id": "m", "customType": "t", "content": MENTION}
    ),
    "a summary": json.dumps({"type": "compaction", "id": "m", "summary": MENTION}),
    "what another tool writes down": _line(
        {"type": "toolCall", "id": "c", "name": "write", "arguments": {"path": "a", "text": MENTION}}
    ),
}


@pytest.mark.parametrize("name", list(LEFT_ALONE))
def test_texts_stay_unchanged(name: str) -> None:
    assert redact_line(LEFT_ALONE[name]) == LEFT_ALONE[name]


REDACTED = {
    "a call": _line(CALL),
    "a call in a batch": _line(
        {"type": "toolCall", "id": "c", "name": "batch", "arguments": {"calls": [CALL]}}
    ),
    "a call as arguments in a string": _line(
        {"type": "toolUse", "id": "c", "name": "batch", "input": MENTION}
    ),
    "a block of another type": _line({**CALL, "type": "hologram"}),
    "a text block that is a call": _line({**CALL, "type": "text", "text": "t"}),
    "something beside a text": _line({"type": "text", "text": "t", "more": MENTION}),
    "something beside the content": _line(details={"calls": [CALL]}),
    "details of the tool's result": _line(role="toolResult", toolName="sessions_spawn", details=ARGUMENTS),
    "an unknown role": _line({"type": "text", "text": MENTION}, role="narrator"),
    "content that another content follows": json.dumps(
        {"type": "message", "id": "m", "message": {"role": "user", "first": [MENTION], "content": "x"}}
    ).replace("first", "content"),
    "data of a plugin": json.dumps({"type": "custom", "id": "m", "customType": "t", "data": [MENTION]}),
}


@pytest.mark.parametrize("name", list(REDACTED))
def test_everything_else_with_content_is_redacted(name: str) -> None:
    assert SECRET in REDACTED[name]
    stored = redact_line(REDACTED[name])
    assert SECRET not in stored
    assert redact_line(stored) == stored


@pytest.mark.parametrize("kind", ["sessions_spawn", "read"])
def test_a_stored_line_is_not_too_deep_to_export(kind: str) -> None:
    def nested(depth: int) -> str:
        return json.dumps({"type": "toolCall", "id": "c", "name": kind, "v": "[" * 200})[:-1] + (
            ',"n":' + "[" * (depth - 1) + '"]{"' + "]" * (depth - 1) + "}"
        )

    deepest = nested(MAX_STORED_DEPTH)
    assert redact_block(kind, deepest) == deepest
    assert redact_document(deepest, is_object=True) == deepest
    redact_line(_line().replace("[]", f'[{{"type":"toolCall","providerBlock":{deepest}}}]'))
    with pytest.raises(NotJson):
        redact_block(kind, nested(MAX_STORED_DEPTH + 1))
    with pytest.raises(NotJson):
        redact_document(nested(MAX_STORED_DEPTH + 1), is_object=True)
