"""Tool calls in the shapes of all providers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_model_router.domain.calls import arguments_of, call_block, portable_id

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner), max_leaves=8
)


@given(st.text(), st.text(), st.dictionaries(st.text(), values))
def test_a_call_survives_the_way_into_its_block_and_back(call_id: str, name: str, arguments: dict[str, object]) -> None:
    block = call_block(call_id, name, json.dumps(arguments))
    assert json.loads(block) == {"type": "toolCall", "id": call_id, "name": name, "arguments": arguments}
    assert arguments_of(block) == arguments


@given(st.text())
def test_whatever_a_model_writes_the_block_is_json(written: str) -> None:
    block = json.loads(call_block("c", "t", written))
    try:
        assert block["arguments"] == json.loads(written.strip() or "{}", parse_constant=_no)
    except ValueError:
        assert block["arguments"] == written


def _no(_constant: str) -> None:
    raise ValueError


@pytest.mark.parametrize("written", ['{"a": NaN}', "[" * 100_000, '{"a": 1', "Infinity"])
def test_what_is_no_json_is_kept_as_a_string(written: str) -> None:
    assert json.loads(call_block("c", "t", written))["arguments"] == written


def test_numbers_keep_their_spelling() -> None:
    assert '"arguments":{"n": 1.50, "big": 1e400}}' in call_block("c", "t", '{"n": 1.50, "big": 1e400}')


@pytest.mark.parametrize(
    "block",
    [
        '{"type":"toolUse","input":{"a":1}}',
        '{"type":"functionCall","args":{"a":1}}',
        '{"type":"toolCall","arguments":"{\\"a\\":1}"}',
    ],
)
def test_arguments_are_found_in_every_shape(block: str) -> None:
    assert arguments_of(block) == {"a": 1}


def test_a_block_without_arguments_has_none_to_pass_on() -> None:
    assert arguments_of('{"type":"toolCall"}') == {}
    assert arguments_of("nonsense") is None
    assert arguments_of('{"arguments":"cut {"}') == "cut {"


def test_ids_that_every_provider_takes_stay_and_others_become_one_that_does() -> None:
    assert portable_id("toolu_01AbC-9") == "toolu_01AbC-9"
    odd = "functions.read:0"
    assert portable_id(odd) == portable_id(odd) != portable_id("functions.read:1")
    assert portable_id(portable_id("x" * 64)) == portable_id("x" * 64)
    assert len(portable_id("x" * 64)) <= 40
