"""The block of a tool call: its text, and the arguments that are read from it."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from spawnmesh_core.call_blocks import arguments_in, call_block

_NAMES = st.text() | st.text(alphabet='"\\,:{} é☃\ud83d\ude00', max_size=8)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=12,
)
_SPACES = st.text(alphabet=" \t\n\r", max_size=2)
_BLOCK = '{"type":"toolCall","id":"c","name":"read","arguments":{"a": 1}}'


def test_a_block_has_one_spelling() -> None:
    assert call_block("c", "read", '{"a": 1}') == _BLOCK
    assert call_block('"', "é", "1") == '{"type":"toolCall","id":"\\"","name":"\\u00e9","arguments":1}'


@given(_NAMES, _NAMES, _VALUES, _SPACES, _SPACES, st.booleans())
def test_the_arguments_of_a_block_are_those_it_was_written_from(
    call_id: str, name: str, value: object, before: str, behind: str, is_ascii: bool
) -> None:
    arguments = before + json.dumps(value, ensure_ascii=is_ascii) + behind
    block = call_block(call_id, name, arguments)
    assert json.loads(block)["arguments"] == json.loads(arguments)
    assert arguments_in(call_id, name, block) == arguments


@given(_NAMES, _NAMES, _NAMES, _NAMES)
@example("c", "read", "c", "write")
@example("c", "read", "d", "read")
def test_a_block_of_another_call_is_returned_complete(
    call_id: str, name: str, other_id: str, other_name: str
) -> None:
    block = call_block(call_id, name, "{}")
    expected = "{}" if (call_id, name) == (other_id, other_name) else block
    assert arguments_in(other_id, other_name, block) == expected


@pytest.mark.parametrize(
    "block",
    [
        "",
        "{}",
        "[]",
        "read",
        '{"type":"toolCall","id":"c","name":"read"}',
        '{"type":"toolCall","id":"c","name":"read","arguments":}',
        '{"type":"toolCall","id":"c","name":"read","arguments":{"a":1}',
        '{"type":"toolCall","id":"c","name":"read","arguments":"}',
        '{"type":"toolCall","id":"c","name":"read","arguments":1,}',
        '{"type":"toolCall","id":"c","name":"read","arguments":1}}',
        '{"type":"toolCall","id":"c","name":"read","arguments":1 2}',
        '{"type":"toolCall","id":"c","name":"read","arguments":1} ',
        '{"type":"toolCall","id":"c","name":"read","arguments":1,"arguments":2}',
        '{"type":"toolCall","id":"c","name":"read","arguments":{},"signature":"s"}',
        '{"type": "toolCall","id":"c","name":"read","arguments":{}}',
        '{"id":"c","type":"toolCall","name":"read","arguments":{}}',
        '{"type":"toolUse","id":"c","name":"read","arguments":{}}',
        '{"type":"toolCall","id":"c","name":"\\u0072ead","arguments":{}}',
        f'{{"type":"toolCall","id":"c","name":"read","arguments":{"[" * 100_000}{"]" * 100_000}}}',
    ],
)
def test_a_block_of_any_other_shape_is_returned_complete(block: str) -> None:
    assert arguments_in("c", "read", block) == block


@given(st.integers(min_value=0, max_value=len(_BLOCK) - 1))
def test_a_block_that_is_cut_off_is_returned_complete(length: int) -> None:
    assert arguments_in("c", "read", _BLOCK[:length]) == _BLOCK[:length]
