"""JSON that people read and edit keeps its meaning."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_console.domain.approvals import shown_arguments
from spawnmesh_console.domain.readable_json import MAX_READABLE, readable_json, texts_within
from spawnmesh_console.domain.shown_text import harmless

UNSEEN = st.sampled_from('\u202e\u200b\x7f\x1b\u2028\ud800\U000e0041\U0001f600"\\\n漢')
TEXTS = st.text(st.one_of(st.characters(), UNSEEN), max_size=8)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=20,
)


@given(VALUES, st.booleans(), st.sampled_from([None, 1, 7]))
def test_it_means_the_same_and_nothing_in_it_is_unseen(
    value: object, ascii_only: bool, indent: int | None
) -> None:
    shown = readable_json(json.dumps(value, ensure_ascii=ascii_only, indent=indent))
    assert json.loads(shown) == value
    assert harmless(shown) == shown
    shown.encode()


def test_each_character_that_would_be_unseen_is_escaped() -> None:
    for block in range(0, 0x110000, 0x1000):
        chars = [chr(code) for code in range(block, block + 0x1000) if not 0xD800 <= code < 0xE000]
        text = json.dumps("".join(chars), ensure_ascii=False)
        shown = readable_json(text)
        assert harmless(shown) == shown
        assert json.loads(shown) == json.loads(text)


def test_it_has_a_line_for_each_value_and_keeps_digits() -> None:
    text = '{"a":[1,{}],"b" : 12345678901234567890.10,"c":"x, {y}: \\u6f22"}'
    assert readable_json(text).split("\n") == [
        "{",
        '  "a": [',
        "    1,",
        "    {}",
        "  ],",
        '  "b": 12345678901234567890.10,',
        '  "c": "x, {y}: 漢"',
        "}",
    ]


@pytest.mark.parametrize("text", ["", "{", "no JSON", "[" * 100_000, '{"a": 1,}'])
def test_a_text_that_is_no_json_stays_as_it_is(text: str) -> None:
    assert readable_json(text) == text
    assert texts_within(text) == ()


def test_indents_do_not_outgrow_the_text() -> None:
    text = "[" * 400 + ",".join(["1"] * 30_000) + "]" * 400
    assert len(readable_json(text)) < 20 * len(text)


def test_texts_of_several_lines_are_found() -> None:
    text = json.dumps({"a": "one\ntwo", "b": "one\n", "c": ["x\ny"], "d": 3})
    assert texts_within(text) == (("a", "one\ntwo"),)


@pytest.mark.parametrize("content", ["short", "x" * 5000, "y\n" * 500])
def test_the_beginning_and_the_rest_are_the_arguments(content: str) -> None:
    shown = shown_arguments(json.dumps({"content": content, "list": list(range(200))}))
    assert shown.beginning + shown.rest == shown.text
    assert len(shown.beginning) <= 1500
    assert shown_arguments('{"a": 1}').rest == ""


@given(VALUES, st.integers(0, 200))
def test_a_beginning_is_that_of_the_complete_text(value: object, max_count: int) -> None:
    text = json.dumps(value)
    assert readable_json(text, max_count) == readable_json(text)[:max_count]


def test_a_text_that_is_too_long_stays_as_it_is() -> None:
    text = json.dumps({"a": "one\ntwo", "b": "x" * MAX_READABLE})
    assert readable_json(text) == text
    assert readable_json(text, 9) == text[:9]
    assert texts_within(text) == ()


def test_numbers_of_any_length_are_readable() -> None:
    text = "9" * 5000
    assert readable_json(f"[{text}]") == f"[\n  {text}\n]"


@pytest.mark.parametrize(
    "text",
    [
        '{"a":' + "[" * 400 + ",".join(["1"] * 30_000) + "]" * 400 + "}",
        '"' + "\u200b漢" * 20_000 + '"',
        '{"a":' + '"\\u200b' * 10_000,
        '["' + "\\\\" * 32_000 + '"]',
        '{"a":' + ",".join(["[1,1]"] * 1_000_000) + "}",
    ],
)
def test_a_beginning_of_a_hostile_text_is_made_at_once(text: str) -> None:
    begin = time.process_time()
    assert len(readable_json(text, 6000)) == 6000
    assert time.process_time() - begin < 0.1


def test_a_list_shows_the_beginning_of_long_arguments() -> None:
    short, middle, long = (json.dumps({"a": "b\n" * count}) for count in (10, 1500, 5000))
    assert shown_arguments(short, in_list=True) == shown_arguments(short)
    shown = shown_arguments(middle, in_list=True)
    assert (shown.is_cut, len(shown.beginning + shown.rest), shown.texts) == (True, 4000, ())
    assert shown.text == shown_arguments(middle).text, "it can be edited in the list"
    shown = shown_arguments(long, in_list=True)
    assert (shown.is_cut, len(shown.beginning + shown.rest), shown.text) == (True, 4000, "")
    assert not shown_arguments(long).is_cut
