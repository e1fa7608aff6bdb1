"""Content of spans has no files and no secrets, is bounded, and can always be sent."""

import json

import pytest
from spawnmesh_core.span_content import SpanContent

CONTENT = SpanContent(4096)


@pytest.mark.parametrize("block", ['{"arguments": {"attachments": [{"content": "plan"', "[" * 2000, '"plan"'])
def test_arguments_of_a_spawn_that_cannot_be_searched_are_left_out(block: str) -> None:
    assert CONTENT.arguments("sessions_spawn", block).startswith("[left out")


def test_arguments_are_json_in_every_form_of_a_block() -> None:
    for block in ({"arguments": {"a": 1}}, {"input": {"a": 1}}, {"arguments": '{"a": 1}'}):
        assert json.loads(CONTENT.arguments("look", json.dumps(block))) == {"a": 1}
    assert json.loads(CONTENT.arguments("look", '{"arguments": "no JSON"}')) == "no JSON"
    assert CONTENT.arguments("look", "no JSON") == "null"


def test_a_text_that_cannot_be_encoded_is_sent_with_a_mark() -> None:
    assert CONTENT.arguments("look", '{"arguments": {"a": "\\ud800"}}') == '{"a": "?"}'


def test_a_cut_text_is_whole_characters_within_its_share() -> None:
    cut = CONTENT.text("é" * 4096)
    kept, note = cut.split("…")
    assert (len(kept.encode()), note) == (1024, " [4096 characters in all]")
