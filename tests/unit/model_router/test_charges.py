"""The cost of several answers, and the most that a call may use."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_model_router.domain.answer import Usage, UsageBounds
from spawnmesh_model_router.domain.charges import ChargedUsage, charge_for
from spawnmesh_model_router.domain.policy import Prices
from spawnmesh_model_router.domain.reservations import largest_cost, largest_tokens
from spawnmesh_model_router.domain.run_calls import seconds_to_record

counts, prices = st.integers(0, 10**9), st.integers(0, 10**9)


@st.composite
def answers(draw: st.DrawFn) -> tuple[Prices, Usage]:
    """Return the prices of a model and what one of its answers used."""
    read, written, plain = draw(counts), draw(counts), draw(counts)
    usage = Usage(plain + read + written, draw(counts), read, written)
    return Prices(draw(prices), draw(prices), draw(prices), draw(prices)), usage


@given(st.lists(answers(), max_size=8))
def test_cost_of_a_sum_is_the_sum_of_the_costs(made: list[tuple[Prices, Usage]]) -> None:
    charged = [charge_for(*one) for one in made]
    total = sum(charged, ChargedUsage())
    assert total.cost_micros == sum(one.cost_micros for one in charged)
    assert total.token_count == sum(one.token_count for one in charged)
    assert total.usage == sum((usage for _, usage in made), Usage())


@given(st.lists(answers(), max_size=8))
def test_cost_of_a_sum_is_exact_but_for_a_millionth_of_each_answer(
    made: list[tuple[Prices, Usage]],
) -> None:
    exact = sum(
        (usage.input - usage.cache_read - usage.cache_write) * price.input
        + usage.output * price.output
        + usage.cache_read * price.cache_read
        + usage.cache_write * price.cache_write
        for price, usage in made
    )
    cost = sum((charge_for(*one) for one in made), ChargedUsage()).cost_micros
    assert exact <= cost * 10**6 < exact + max(len(made), 1) * 10**6


def test_tokens_of_the_caches_are_input() -> None:
    assert charge_for(Prices(1, 1, 1, 1), Usage(10, 5, cache_read=7, cache_write=2)).token_count == 15


@given(st.lists(answers(), min_size=1, max_size=4), st.data())
def test_no_answer_within_its_bounds_uses_more_than_the_largest(
    made: list[tuple[Prices, Usage]], data: st.DataObject
) -> None:
    candidates = [(price, UsageBounds(usage.input, usage.output)) for price, usage in made]
    price, usage = data.draw(st.sampled_from(made))
    charged = charge_for(price, Usage(usage.input, usage.output))
    assert charged.token_count <= largest_tokens(candidates)
    assert charged.cost_micros <= largest_cost(candidates)


@pytest.mark.parametrize(
    ("remaining", "seconds"),
    [(100.0, 160.0), (0.0, 60.0), (-5.0, 60.0), (1e9, 86_400.0), (math.inf, 86_400.0)],
)
def test_record_has_a_minute_after_the_deadline(remaining: float, seconds: float) -> None:
    assert seconds_to_record(remaining) == seconds
