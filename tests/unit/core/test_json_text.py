"""The parser agrees with the standard one, and edits change only their place."""

import json
import time
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_core.json_text import (
    MAX_DEPTH,
    MAX_NODES,
    Edit,
    List,
    Node,
    NodeBudget,
    NotJson,
    Object,
    String,
    TooManyNodes,
    apply_edits,
    count_nodes,
    may_have_too_many_nodes,
    member_spans,
    parse_json,
    require_few_nodes,
)

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def _read_back(text: str, node: Node) -> Any:
    if isinstance(node, Object):
        return {key: _read_back(text, child) for key, child in node.members}
    if isinstance(node, List):
        return [_read_back(text, item) for item in node.items]
    if isinstance(node, String):
        return node.value
    return json.loads(text[node.start : node.end])


@given(_VALUES, st.sampled_from([None, 2]), st.booleans())
def test_positions_read_back_as_the_value(value: Any, indent: int | None, ensure_ascii: bool) -> None:
    text = f" \n{json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)}\t"
    node = parse_json(text)
    assert _read_back(text, node) == value
    assert text[node.start : node.end] == text.strip(" \n\t")


@given(st.text(alphabet='{}[]",:0 a\\', max_size=12))
def test_what_the_standard_parser_refuses_is_refused(text: str) -> None:
    try:
        json.loads(text)
    except ValueError:
        with pytest.raises(NotJson):
            parse_json(text)
    else:
        parse_json(text)


@pytest.mark.parametrize(
    "text", ["", "{", '{"a"}', '{"a":1,}', "[1,]", "[1 2]", '{"a":1} x', '"\\x"', "01", "tru", "{'a':1}"]
)
def test_broken_json_is_refused(text: str) -> None:
    with pytest.raises(NotJson):
        parse_json(text)


def test_a_key_that_is_there_twice_is_seen_twice() -> None:
    node = parse_json('{"a":1,"a":2}')
    assert isinstance(node, Object)
    assert [key for key, _ in node.members] == ["a", "a"]


def test_nesting_has_a_limit() -> None:
    parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    with pytest.raises(NotJson):
        parse_json("[" * 5000 + "]" * 5000)


def _node_count(node: Node) -> int:
    if isinstance(node, Object):
        return 1 + sum(_node_count(child) for _, child in node.members)
    return 1 + sum(map(_node_count, node.items)) if isinstance(node, List) else 1


@given(_VALUES)
def test_each_value_is_taken_from_the_budget(value: Any) -> None:
    text = json.dumps(value)
    count = _node_count(parse_json(text))
    budget = NodeBudget(count)
    parse_json(text, budget)
    assert budget.left == 0
    with pytest.raises(TooManyNodes):
        parse_json(text, NodeBudget(count - 1))
    assert count <= 1 + sum(map(text.count, ",[{"))


@given(_VALUES, st.sampled_from([None, 2]))
def test_values_are_counted_without_parsing_them(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    count = _node_count(parse_json(text))
    assert count_nodes(text, count) == count
    require_few_nodes(text, count)
    if count > 1:
        with pytest.raises(TooManyNodes):
            require_few_nodes(text, count - 1)


@given(_VALUES, st.sampled_from(["", "]", "'", "\\", '"', "[]", "{}" * 9]))
def test_a_parser_meets_no_more_values_than_are_counted_before_a_text_goes_wrong(
    value: Any, wrong: str
) -> None:
    text = json.dumps(value)
    with pytest.raises(TooManyNodes):
        count_nodes(f"[{text}{wrong}", _node_count(parse_json(text)))


@pytest.mark.parametrize("beginning", ["", '{"a":"'])
@pytest.mark.parametrize("unit", ['\\"', '""', "[", "[ ", "{}", '"a":0,'])
def test_values_are_counted_in_time_in_proportion_and_without_memory(beginning: str, unit: str) -> None:
    text = beginning + unit * 1_000_000
    begin = time.process_time()
    with suppress(TooManyNodes):
        count_nodes(text, 1_000)
    assert time.process_time() - begin < 0.5
    tracemalloc.start()
    with suppress(TooManyNodes):
        count_nodes(text, MAX_NODES // 10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


@given(st.dictionaries(st.text(), _VALUES, max_size=4), st.sampled_from([None, 2]))
def test_members_are_found_without_parsing_them(value: dict[str, Any], indent: int | None) -> None:
    text = f" {json.dumps(value, indent=indent)} "
    node = parse_json(text)
    assert isinstance(node, Object)
    assert member_spans(text) == [(name, child.start, child.end) for name, child in node.members]


def test_members_that_are_there_twice_are_found_twice_and_only_in_an_object() -> None:
    assert member_spans('{"a" : 1 , "a":[2]}') == [("a", 7, 8), ("a", 15, 18)]
    assert member_spans('["a"]') == member_spans("{}") == []
    with pytest.raises(NotJson):
        member_spans('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")


def test_the_number_of_values_has_a_limit() -> None:
    assert NodeBudget().left == MAX_NODES
    text = "[" + "0," * MAX_NODES
    assert may_have_too_many_nodes(text)
    with pytest.raises(TooManyNodes):
        parse_json(text)
    parse_json(json.dumps("a,b,[c],{d}" * (MAX_NODES // 4)))


def test_edits_keep_everything_else() -> None:
    assert apply_edits("0123456789", [Edit(7, 9, "B"), Edit(1, 3, "A")]) == "0A3456B9"
