"""Positions of search hits in the stored JSON."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_transcript.operations.search.texts import FoundText, texts_in

_CHARACTER = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....|\\.|.", re.DOTALL)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab\\\"", max_size=3), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def _of_call(block_json: str, name: str = "read") -> FoundText:
    call = content_pb.ToolCall(tool_call_id="c", name=name, block_json=block_json)
    message = content_pb.Message(
        role=content_pb.ROLE_ASSISTANT, content=[content_pb.ContentBlock(tool_call=call)]
    )
    [found] = texts_in(pb.EntryBody(message=message))
    return found


def _written_at(document: str, offset: int) -> str:
    """Return the character written at this place, in a string or in a number."""
    found = _CHARACTER.match(document.encode()[offset:].decode())
    assert found
    return str(json.loads(f'"{found.group()}"', strict=False))


@given(_VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_each_searchable_character_has_its_position(
    value: Any, ensure_ascii: bool, indent: int | None
) -> None:
    document = json.dumps(
        {"name": "read", "input": value, "é": "z"}, ensure_ascii=ensure_ascii, indent=indent
    )
    found = _of_call(document)
    parts = found.text.split("\n")
    assert parts[:2] == ["read", "read"]
    offsets = [found.byte_offset(place) for place in range(5, len(found.text))]
    for place, offset in enumerate(offsets, 5):
        if found.text[place] != "\n":
            assert _written_at(document, offset) == found.text[place]
    assert offsets == sorted(offsets)


@pytest.mark.parametrize(
    ("document", "text", "rest"),
    [
        ('{"id":"c","name":" read ","a":"x"}', "read", ' read ","a"'),
        ('{"function":{"name":"read"},"a":1}', "read", 'read"}'),
        ('{"a":"old","a":"\\ud83d\\ude00\\ud800 new"}', "new", 'new"'),
        ('{"a":[NaN,-Infinity,1e400,12345678901234567890]}', "12345", "12345678901234567890]"),
        ('{"a":"one\\ntwo"}', "\ntwo", '\\ntwo"'),
    ],
)
def test_unusual_documents(document: str, text: str, rest: str) -> None:
    found = _of_call(document)
    at = found.text.index(text)
    assert document.encode()[found.byte_offset(at) :].decode().startswith(rest)


def test_other_json_and_values_that_cannot_be_searched() -> None:
    [custom] = texts_in(pb.EntryBody(custom=pb.Custom(custom_type="t", data_json='{"k": ["é", "needle"]}')))
    assert custom.byte_offset(custom.text.index("needle")) == 14
    [deep] = texts_in(
        pb.EntryBody(custom=pb.Custom(custom_type="t", data_json="[" * 200 + '"needle"' + "]" * 200))
    )
    assert deep.text == "needle"
    assert deep.byte_offset(0) == 0
    [broken] = texts_in(pb.EntryBody(custom=pb.Custom(custom_type="t", data_json='["é", needle')))
    assert broken.byte_offset(broken.text.index("needle")) == 7
