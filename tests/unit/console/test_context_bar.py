"""The bar of a context: proportional pieces without gaps, and the free rest of the budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_console.domain.context_bar import ContextPart, context_bar

_USED = [part for part in ContextPart if part is not ContextPart.FREE]
_COUNTS = st.dictionaries(st.sampled_from(_USED), st.integers(0, 2**31), max_size=len(_USED))


@given(_COUNTS, st.integers(1, 2**31 - 1))
def test_pieces_fill_the_bar_in_order_without_gaps(counts: dict[ContextPart, int], budget: int) -> None:
    bar = context_bar(counts, budget)
    x = 0.0
    for piece in bar.pieces:
        assert piece.x == pytest.approx(x, abs=0.01)
        assert piece.width > 0.5
        x += piece.width
    assert x == pytest.approx(100, abs=0.01)
    parts = [piece.part for piece in bar.pieces]
    assert parts == [part for part in ContextPart if part in parts]


@given(_COUNTS, st.integers(1, 2**31 - 1))
def test_tokens_sum_to_the_budget_or_to_what_exceeds_it(counts: dict[ContextPart, int], budget: int) -> None:
    bar = context_bar(counts, budget)
    assert sum(piece.token_count for piece in bar.pieces) == budget + bar.over_count
    assert bar.used_count == sum(counts.values())
    assert bar.over_count == max(bar.used_count - budget, 0)
    assert 0 < bar.budget_x <= 100 or bar.used_count > 1000 * budget


def test_widths_are_proportional() -> None:
    bar = context_bar({ContextPart.WHOLE: 300, ContextPart.STUBBED: 100}, 800)
    assert [(piece.part, piece.x, piece.width) for piece in bar.pieces] == [
        (ContextPart.WHOLE, 0, 37.5),
        (ContextPart.STUBBED, 37.5, 12.5),
        (ContextPart.FREE, 50, 50),
    ]


def test_few_tokens_can_be_seen_and_none_have_no_piece() -> None:
    bar = context_bar({ContextPart.SYSTEM: 1, ContextPart.WHOLE: 0}, 1_000_000)
    assert [piece.part for piece in bar.pieces] == [ContextPart.SYSTEM, ContextPart.FREE]
    assert bar.pieces[0].width == pytest.approx(0.6)


def test_a_context_beyond_its_budget_shows_where_the_budget_ends() -> None:
    bar = context_bar({ContextPart.WHOLE: 200}, 50)
    assert [piece.part for piece in bar.pieces] == [ContextPart.WHOLE]
    assert (bar.over_count, bar.budget_x) == (150, 25)


def test_a_context_that_fills_its_budget_has_no_free_piece() -> None:
    bar = context_bar({ContextPart.WHOLE: 50}, 50)
    assert [piece.part for piece in bar.pieces] == [ContextPart.WHOLE]
    assert (bar.over_count, bar.budget_x) == (0, 100)
