"""Run the fuzz targets for a moment. `python -m tests.fuzz` runs them for any time."""

import base64
import random
from itertools import islice

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.mutate import mutations
from tests.fuzz.targets import TARGETS, judge_base64, judge_name


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_mutated_input_breaks_no_rule(target: str) -> None:
    accepted = 0
    for text, feedback in islice(mutations(target, random.Random(7)), 4_000):
        if TARGETS[target](text):
            accepted += 1
            feedback.accepted(text)
    assert 200 < accepted < 3_800, "the mutations find one side only"


@given(st.text(st.characters(), max_size=300))
@example("\udfff")
def test_any_text_is_validated_as_a_name_consistently(name: str) -> None:
    judge_name(name)


@given(st.text(st.sampled_from("AQgw+/-_= \n\té"), max_size=200))
def test_any_text_is_validated_as_base64_like_the_strict_standard_library(text: str) -> None:
    judge_base64(text)


@given(
    st.binary(max_size=80), st.lists(st.tuples(st.integers(0, 120), st.sampled_from("=AQ \n-")), max_size=2)
)
def test_encodings_with_one_more_character_are_validated_like_the_standard_library(
    data: bytes, inserted: list[tuple[int, str]]
) -> None:
    text = base64.b64encode(data).decode()
    for at, character in inserted:
        text = text[:at] + character + text[at:]
    judge_base64(text)
