"""Condensed messages keep their shape, and what they leave out can be read again."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_transcript.domain.condensation import (
    CONDENSED_BYTES,
    CondensedFile,
    condensed_file_id,
    parse_file_id,
    replace_strings,
    string_at,
)
from spawnmesh_transcript.domain.entries import NewEntry
from spawnmesh_transcript.operations.bodies.condensed import (
    condense,
    left_out_file,
    named_files,
    without_thinking,
)
from spawnmesh_transcript.operations.bodies.message_entries import message_entry
from spawnmesh_transcript.operations.bodies.tokens import message_token_count

MESSAGE_ID = "file_01k9z3v5qj8n2m4r6t8w0x2y4a"
LONG = "line of code\n" * 120

texts = st.text() | st.text(min_size=1).map(lambda text: text * 400)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=12,
)
arguments = st.dictionaries(st.text(), values, max_size=5)


def in_shape(shape: str, given: Any) -> dict[str, Any]:
    match shape:
        case "toolCall":
            return {"type": shape, "id": "c1", "name": "edit", "arguments": given, "signature": "s" * 2_000}
        case "toolUse":
            return {"type": shape, "id": "c1", "name": "edit", "input": given}
        case "functionCall":
            return {"type": shape, "id": "c1", "name": "edit", "arguments": json.dumps(given)}
        case _:
            return {"id": "c1", "type": "function", "function": {"name": "e", "arguments": json.dumps(given)}}


def arguments_in(block: dict[str, Any]) -> Any:
    holder = block.get("function", block)
    given = next(holder[key] for key in ("arguments", "input") if key in holder)
    return json.loads(given) if isinstance(given, str) else given


shapes = st.sampled_from(["toolCall", "toolUse", "functionCall", "function"])


@given(arguments, shapes)
def test_each_string_of_the_arguments_is_found_again_by_its_index(given: Any, shape: str) -> None:
    block = in_shape(shape, given)
    block_json = json.dumps(block)
    seen: dict[int, str] = {}

    def mark(index: int, text: str) -> str:
        seen[index] = text
        return f"#{index}"

    replaced = replace_strings(block_json, mark)

    assert list(seen) == list(range(len(seen)))
    assert all(string_at(block_json, index) == text for index, text in seen.items())
    assert string_at(block_json, len(seen)) is None
    if replaced is None:
        assert not seen
        return
    undone = replace_strings(replaced, lambda index, _: seen[index])
    assert arguments_in(json.loads(undone or replaced)) == arguments_in(block)
    kept = {key: value for key, value in json.loads(replaced).items() if key in ("type", "id", "signature")}
    assert kept == {key: value for key, value in block.items() if key in kept}
    assert same_shape(arguments_in(json.loads(replaced)), given)


def same_shape(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_shape(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_shape, one, other))
    return isinstance(one, str) or one == other


@pytest.mark.parametrize(
    "block_json",
    ['{"id":"c1"}', '{"arguments":"not JSON"}', "[]", "null", '{"arguments":7}', '{"input":"{\\"a\\":"}'],
)
def test_a_call_without_json_arguments_stays(block_json: str) -> None:
    assert replace_strings(block_json, lambda index, text: "x") is None
    assert string_at(block_json, 0) is None


def test_a_lone_surrogate_stays() -> None:
    block_json = '{"arguments":{"a":"\\ud800","b":"' + "b" * 2_000 + '"}}'
    assert replace_strings(block_json, lambda index, text: text if len(text) < 9 else "x") is None
    assert string_at(block_json, 0) is None


@given(st.integers(0, 255), st.none() | st.integers(0, 499_999))
def test_an_id_names_its_place(block_index: int, string_index: int | None) -> None:
    file_id = condensed_file_id(MESSAGE_ID, block_index, string_index)
    assert parse_file_id(file_id) == CondensedFile(MESSAGE_ID, block_index, string_index)
    assert parse_file_id(MESSAGE_ID) is None


def entry_of(role: "content_pb.Role.ValueType", *blocks: content_pb.ContentBlock) -> NewEntry:
    return message_entry(content_pb.Message(role=role, content=blocks))


def call_of(given: Any) -> content_pb.ContentBlock:
    block_json = json.dumps(in_shape("toolCall", given))
    call = content_pb.ToolCall(tool_call_id="c1", name="edit", block_json=block_json)
    return content_pb.ContentBlock(tool_call=call)


def text_of(text: str) -> content_pb.ContentBlock:
    return content_pb.ContentBlock(text=content_pb.Text(text=text))


THINKING = content_pb.ContentBlock(thinking=content_pb.Thinking(text=LONG, signature="c2ln"))


@given(st.lists(arguments.map(call_of) | texts.map(text_of) | st.just(THINKING), min_size=1, max_size=5))
def test_a_condensed_body_is_shorter_and_names_what_it_leaves_out(
    blocks: list[content_pb.ContentBlock],
) -> None:
    entry = entry_of(content_pb.ROLE_ASSISTANT, *blocks)
    for stub in condense([entry]):
        assert stub.body is not None
        message = pb.EntryBody.FromString(stub.body).message
        assert stub.token_count == message_token_count(message) <= entry.token_count
        assert stub.token_count - stub.thinking_token_count < entry.token_count
        assert [block for block in message.content if not block.HasField("tool_call")] == [
            block for block in blocks if not block.HasField("tool_call")
        ]
        for file_id in named_files(stub.body, stub.file_id):
            file = parse_file_id(file_id)
            assert file is not None
            found = left_out_file(entry.body, file)
            assert found is not None
            assert len(found.data) >= CONDENSED_BYTES
        rest = pb.EntryBody.FromString(without_thinking(stub.body)).message
        tokens = message_token_count(rest)
        assert tokens == stub.token_count - (stub.thinking_token_count if tokens != stub.token_count else 0)


def test_texts_of_users_and_models_stay() -> None:
    entries = [entry_of(role, text_of(LONG)) for role in (content_pb.ROLE_USER, content_pb.ROLE_ASSISTANT)]
    assert condense(entries) == []


def test_a_message_of_thinking_alone_stays() -> None:
    assert condense([entry_of(content_pb.ROLE_ASSISTANT, THINKING)]) == []


def test_an_output_below_the_limit_stays() -> None:
    def output(size: int) -> NewEntry:
        return entry_of(content_pb.ROLE_TOOL_RESULT, text_of((LONG * 2)[:size]), text_of("and the rest"))

    assert condense([output(CONDENSED_BYTES - 1)]) == []
    [stub] = condense([output(CONDENSED_BYTES)])
    assert stub.body is not None
    head, rest = pb.EntryBody.FromString(stub.body).message.content
    assert head.text.text == (
        f"[Tool output {stub.file_id}_0 | tool=unknown | {CONDENSED_BYTES:,} bytes]\n"
        "To read it, call transcript_describe with that file_id."
    )
    assert rest.text.text == "and the rest"
