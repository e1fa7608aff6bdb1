"""Texts of a context are folded without a loss, and what is missing is said in sentences."""

from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_console.domain.context_view import LeftOutRange, ShownContext, folded


@given(st.text(st.sampled_from("a\n"), max_size=300))
def test_folding_loses_no_line(text: str) -> None:
    fold = folded(text)
    assert fold.beginning.count("\n") < 30
    separator = "\n" if text.count("\n") >= 30 else ""
    assert fold.beginning + separator + fold.rest == text
    assert fold.line_count == (text.count("\n") - 29 if fold.rest else 0)


def test_a_short_text_is_not_folded() -> None:
    fold = folded("one\ntwo")
    assert (fold.beginning, fold.rest, fold.line_count) == ("one\ntwo", "", 0)


def test_one_long_line_is_folded_too() -> None:
    fold = folded("x" * 10_000)
    assert len(fold.beginning) == 4_000
    assert (len(fold.rest), fold.line_count, fold.left_out_count) == (6_000, 1, 0)


def test_a_text_without_end_is_left_out_in_part() -> None:
    fold = folded("x" * 250_000)
    assert len(fold.beginning + fold.rest) == 200_000
    assert fold.left_out_count == 50_000


def _context(**fields: object) -> ShownContext:
    values = {"items": (), "token_count": 0, "system_token_count": 0, "dropped_count": 0,
              "superseded_count": 0, "left_out": (), "is_estimate": False, "vocabulary": "o200k_base",
              "is_compaction_due": False}  # fmt: skip
    return ShownContext(**{**values, **fields})  # type: ignore[arg-type]


def test_missing_entries_are_said_in_sentences() -> None:
    context = _context(
        dropped_count=12,
        left_out=(
            LeftOutRange(2, 14, 12, "BUDGET"),
            LeftOutRange(20, 20, 1, "SUPERSEDED"),
            LeftOutRange(30, 31, 2, "UNMATCHED"),
            LeftOutRange(40, 40, 1, "A_NEWER_CAUSE"),
        ),
    )
    assert context.left_out_sentences == [
        "12 messages and notes (among entries 2 to 14) did not fit the budget.",
        "1 message or note (entry 20) is a superseded draft.",
        "2 messages and notes (among entries 30 to 31) have no matching call or result.",
        "1 message or note (entry 40) is left out.",
    ]


def test_counts_are_said_if_the_ranges_are_not_known() -> None:
    assert _context(dropped_count=1, superseded_count=1_200).left_out_sentences == [
        "1 message or note did not fit the budget.",
        "1,200 messages and notes are superseded drafts.",
    ]
    assert _context().left_out_sentences == []
