"""Tool calls in the formats of all providers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_model_router.domain.tool_calls import parse_arguments, portable_id, tool_call_block

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.text(), st.text(), st.dictionaries(st.text(), values))
def test_a_call_survives_the_way_into_its_block_and_back(
    call_id: str, name: str, arguments: dict[str, object]
) -> None:
    block = tool_call_block(call_id, name, json.dumps(arguments))
    assert json.loads(block) == {"type": "toolCall", "id": call_id, "name": name, "arguments": arguments}
    assert parse_arguments(block) == arguments


@given(st.text())
def test_whatever_a_model_writes_the_block_is_json(written: str) -> None:
    block = json.loads(tool_call_block("c", "t", written))
    try:
        assert block["arguments"] == json.loads(written.strip() or "{}", parse_constant=_no)
    except ValueError:
        assert block["arguments"] == written


def _no(_constant: str) -> None:
    raise ValueError


@pytest.mark.parametrize("written", ['{"a": NaN}', "[" * 100_000, '{"a": 1', "Infinity"])
def test_what_is_no_json_is_kept_as_a_string(written: str) -> None:
    assert json.loads(tool_call_block("c", "t", written))["arguments"] == written


def test_numbers_keep_their_spelling() -> None:
    assert '"arguments":{"n": 1.50, "big": 1e400}}' in tool_call_block("c", "t", '{"n": 1.50, "big": 1e400}')


@pytest.mark.parametrize(
    "block",
    [
        '{"type":"toolUse","input":{"a":1}}',
        '{"type":"functionCall","args":{"a":1}}',
        '{"type":"toolCall","arguments":"{\\"a\\":1}"}',
    ],
)
def test_arguments_are_found_in_every_shape(block: str) -> None:
    assert parse_arguments(block) == {"a": 1}


def test_a_block_without_arguments_has_none_to_pass_on() -> None:
    assert parse_arguments('{"type":"toolCall"}') == {}
    assert parse_arguments("nonsense") is None
    assert parse_arguments('{"arguments":"cut {"}') == "cut {"


def test_ids_that_every_provider_takes_stay_and_others_become_one_that_does() -> None:
    assert portable_id("toolu_01AbC-9") == "toolu_01AbC-9"
    odd = "functions.read:0"
    assert portable_id(odd) == portable_id(odd) != portable_id("functions.read:1")
    assert portable_id(portable_id("x" * 64)) == portable_id("x" * 64)
    assert len(portable_id("x" * 64)) <= 40
