"""The cost of a call, and the budget that it exceeds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_model_router.domain.policy import (
    BudgetKind,
    Limits,
    Prices,
    Spent,
    cost_micros,
    estimated_tokens,
    exceeded,
)

PRICES = Prices(input=1_000_000, output=5_000_000, cache_read=100_000, cache_write=1_250_000)
counts = st.integers(0, 10**9)


def test_each_sort_of_token_has_its_price() -> None:
    assert cost_micros(PRICES, 113, 42, 100, 3) == -(
        -(10 * 1_000_000 + 42 * 5_000_000 + 100 * 100_000 + 3 * 1_250_000) // 10**6
    )


@given(counts, counts, counts, counts)
def test_a_cost_is_never_negative_and_never_falls_with_more(
    read: int, written: int, cached: int, stored: int
) -> None:
    cost = cost_micros(PRICES, read + cached + stored, written, cached, stored)
    assert cost >= 0
    assert cost_micros(PRICES, read + cached + stored + 1, written, cached, stored) >= cost
    assert cost_micros(PRICES, read + cached + stored, written + 1, cached, stored) >= cost


def test_caches_beyond_what_was_read_do_not_pay_back() -> None:
    assert cost_micros(PRICES, 0, 0, 10, 10) >= 0


def test_a_fraction_of_a_millionth_is_rounded_up() -> None:
    assert cost_micros(Prices(1, 1, 1, 1), 1, 0) == 1
    assert cost_micros(Prices(1, 1, 1, 1), 0, 0) == 0


@pytest.mark.parametrize(("byte_count", "tokens"), [(0, 0), (1, 1), (4, 1), (5, 2)])
def test_text_that_nobody_counted_is_estimated(byte_count: int, tokens: int) -> None:
    assert estimated_tokens(byte_count) == tokens


@pytest.mark.parametrize(
    ("spent", "kind", "seconds"),
    [
        (Spent(1, 99, 999, 10, 1000), None, 0),
        (Spent(2, 99, 999, 10, 1000), None, 0),
        (Spent(3, 99, 999, 10, 1000), BudgetKind.REQUESTS_PER_MINUTE, 10),
        (Spent(3, 100, 999, 10, 1000), BudgetKind.TOKENS_PER_MINUTE, 10),
        (Spent(3, 100, 1000, 10, 1000), BudgetKind.SPEND_PER_DAY, 1000),
    ],
)
def test_the_budget_that_lasts_longest_is_returned(
    spent: Spent, kind: BudgetKind | None, seconds: float
) -> None:
    over = exceeded(Limits(2, 100, 1000), spent)
    assert (over.kind if over else None, over.retry_after_seconds if over else 0) == (kind, seconds)
