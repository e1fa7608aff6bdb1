"""The page of a tenant's spending: bars, shares and amounts."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_console.domain.spending import (
    DayBudget,
    ListedSpend,
    ListedSpending,
    SpendMeasure,
    SpentAmount,
    amount_text,
    spend_view,
)

LAST = date(2030, 3, 1)
counts = st.integers(0, 10**12)
spent = st.builds(SpentAmount, st.integers(1, 10**6), counts, counts, counts, st.integers(0, 10**9))
days = st.dictionaries(st.integers(0, 89), spent, max_size=90)
MILLION = 10**6


@pytest.mark.parametrize(
    ("micros", "largest", "text"),
    [
        (0, 0, "0.00"),
        (0, 5 * MILLION, "0.00"),
        (1_239_999, 1_239_999, "1.23"),
        (12_345_678_900, 12_345_678_900, "12,345.67"),
        (9_999, 5 * MILLION, "< 0.01"),
        (10_000, 5 * MILLION, "0.01"),
        (999_999, 999_999, "0.9999"),
        (99, 10_000, "< 0.0001"),
        (9_999, 9_999, "0.009999"),
        (1, 9_999, "0.000001"),
    ],
)
def test_amount_has_the_digits_that_its_column_needs(micros: int, largest: int, text: str) -> None:
    assert amount_text(micros, largest) == text


@given(days, st.sampled_from([7, 30, 90]))
def test_each_day_has_a_bar_within_the_chart(of_days: dict[int, SpentAmount], length: int) -> None:
    rows = [ListedSpend(one, LAST - timedelta(days=ago)) for ago, one in of_days.items() if ago < length]
    view = spend_view(ListedSpending(rows), LAST - timedelta(days=length - 1), LAST)
    assert [one.day for one in view.days] == [LAST - timedelta(days=ago) for ago in reversed(range(length))]
    assert sum((one.spent for one in view.days), SpentAmount()) == view.total
    assert view.is_empty == (not rows)
    for one in view.days:
        assert one.slot_x < one.x < one.x + one.width < one.slot_x + one.slot_width <= view.chart_width
        assert abs(one.y + one.height - 100) < 0.02
        assert (one.height >= 1) == bool(one.spent.measured(view.measure))
    highest = max(one.spent.measured(view.measure) for one in view.days)
    assert view.highest.spent.measured(view.measure) == highest
    assert view.today.spent == of_days.get(0, SpentAmount())


@given(st.lists(spent, max_size=60))
def test_rows_of_a_table_are_all_of_the_spending(amounts: list[SpentAmount]) -> None:
    agents = [ListedSpend(one, agent_id=f"agent-{number}") for number, one in enumerate(amounts)]
    total = sum(amounts, SpentAmount())
    view = spend_view(ListedSpending([ListedSpend(total, LAST)], agents), LAST, LAST)
    assert len(view.agents) == min(len(amounts), 25)
    assert sum((one.spent for one in view.agents), SpentAmount()) == total
    own = [one.spent.measured(view.measure) for one in view.agents if one.name]
    assert own == sorted(own, reverse=True)
    assert all(0 <= one.percent <= 100 for one in view.agents)
    assert [one.words for one in view.agents if one.words] == (
        [f"{len(amounts) - 24} more agents"] if len(amounts) > 25 else []
    )


def test_calls_without_cost_are_measured_in_tokens() -> None:
    row = ListedSpend(SpentAmount(1, 10, 0, 5), LAST)
    view = spend_view(ListedSpending([row], currency="USD"), LAST, LAST)
    assert (view.measure, view.text_with_unit(row.spent)) == (SpendMeasure.TOKENS, "15 tokens")
    empty = spend_view(ListedSpending(currency="USD"), LAST, LAST)
    assert (empty.measure, empty.text_with_unit(SpentAmount())) == (SpendMeasure.COST, "0.00 USD")


@pytest.mark.parametrize(
    ("spent_micros", "reserved", "percents", "left", "is_reached"),
    [
        (0, 0, (0, 0), 100, False),
        (30, 20, (30, 20), 50, False),
        (90, 30, (90, 10), 0, False),
        (100, 0, (100, 0), 0, True),
        (250, 40, (100, 0), 0, True),
    ],
)
def test_bar_of_the_budget_ends_with_it(
    spent_micros: int, reserved: int, percents: tuple[int, int], left: int, is_reached: bool
) -> None:
    budget = DayBudget(100, spent_micros, reserved, datetime(2030, 3, 2, tzinfo=UTC))
    assert (budget.spent_percent, budget.reserved_percent) == percents
    assert (budget.left_micros, budget.is_reached) == (left, is_reached)
