"""Merge answers about a compaction."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_hook.domain.compaction import (
    INSTRUCTIONS_MAX_BYTES,
    CompactionAnswer,
    MergedCompaction,
    merge_compaction,
)


def keep(plugin: str, reason: str) -> CompactionAnswer:
    return CompactionAnswer(plugin, refusal=reason)


def instruct(plugin: str, instructions: str = "") -> CompactionAnswer:
    return CompactionAnswer(plugin, instructions=instructions)


@pytest.mark.parametrize(
    ("answers", "instructions", "refusal", "decided_by"),
    [
        ([], "", "", ()),
        ([instruct("a")], "", "", ()),
        ([instruct("a", "x"), instruct("b"), instruct("c", "y")], "x\n\ny", "", ("a", "c")),
        ([keep("a", "no")], "", "no", ("a",)),
        ([instruct("a", "x"), keep("b", "no"), instruct("c", "y")], "", "no", ("b",)),
        ([instruct("a"), keep("b", "no"), keep("c", "never")], "", "no", ("b",)),
    ],
)
def test_the_first_refusal_decides_and_otherwise_instructions_are_joined(
    answers: list[CompactionAnswer], instructions: str, refusal: str, decided_by: tuple[str, ...]
) -> None:
    assert merge_compaction(answers) == MergedCompaction(instructions, refusal, decided_by)


def test_long_instructions_are_cut_before_the_character_that_does_not_fit() -> None:
    merged = merge_compaction([instruct("a", "é" * (INSTRUCTIONS_MAX_BYTES // 2 - 1)), instruct("b", "éé")])
    assert merged.instructions == "é" * (INSTRUCTIONS_MAX_BYTES // 2 - 1) + "\n\n"
    shifted = merge_compaction([instruct("a", "x" + "é" * INSTRUCTIONS_MAX_BYTES)])
    assert shifted.instructions == "x" + "é" * (INSTRUCTIONS_MAX_BYTES // 2 - 1)


@given(st.lists(st.text(max_size=3_000), max_size=6))
def test_joined_instructions_fit_the_bound(texts: list[str]) -> None:
    merged = merge_compaction([instruct("p", text) for text in texts])
    assert len(merged.instructions.encode()) <= INSTRUCTIONS_MAX_BYTES
    assert "\n\n".join(filter(None, texts)).startswith(merged.instructions)


@given(
    st.lists(st.builds(CompactionAnswer, st.text("pq", min_size=1), st.sampled_from(["", "x"]), st.just("")))
)
def test_plugins_below_do_not_undo_a_refusal(below: list[CompactionAnswer]) -> None:
    assert merge_compaction([keep("a", "no"), *below]) == merge_compaction([*below, keep("a", "no")])
