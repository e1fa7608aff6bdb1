"""The spending of a tenant has a bounded number of rows, and folding loses nothing."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_model_router.domain import spend as rules
from spawnmesh_model_router.domain.answer import Usage
from spawnmesh_model_router.domain.charges import ChargedUsage
from spawnmesh_model_router.domain.spend import (
    FURTHER_AGENTS,
    KEPT_DAYS,
    NO_AGENT,
    Spend,
    SpendKey,
    SpendSpan,
    SpendSums,
    fold_spend,
    midnight,
)

NOW = datetime(2030, 3, 1, 13, 30, tzinfo=UTC)
moments = st.integers(0, 365 * 86_400).map(
    lambda seconds: datetime(2029, 6, 1, tzinfo=UTC) + timedelta(seconds=seconds)
)
NOTHING = Spend(0, ChargedUsage())
days = st.dates(date(2030, 1, 1), date(2030, 1, 3))
agents = st.sampled_from([NO_AGENT, FURTHER_AGENTS, *"abcdefgh"])
keys = st.builds(SpendKey, days, agents, st.sampled_from(["p/one", "p/two"]))
counts = st.integers(0, 10**9)
spends = st.builds(
    Spend,
    st.integers(1, 9),
    st.builds(ChargedUsage, st.builds(Usage, counts, counts, counts, counts), counts),
)
stored = st.dictionaries(days, st.sets(st.sampled_from("abcdxyz"), max_size=5), max_size=3)


@pytest.fixture(autouse=True)
def few_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_AGENTS_OF_DAY", 3)


@given(st.dictionaries(keys, spends, max_size=40), stored)
def test_folding_loses_nothing_and_keeps_day_and_model(
    given_spends: dict[SpendKey, Spend], agents_of: dict[date, set[str]]
) -> None:
    folded = fold_spend(given_spends, agents_of)
    for day in {key.day for key in [*given_spends, *folded.sums]}:
        for model in ("p/one", "p/two"):
            before, after = (
                sum((one for key, one in some.items() if (key.day, key.model) == (day, model)), start=NOTHING)
                for some in (given_spends, folded.sums)
            )
            assert before == after


@given(st.dictionaries(keys, spends, max_size=40), stored)
def test_no_day_has_more_agents_than_its_bound_but_those_it_has_already(
    given_spends: dict[SpendKey, Spend], agents_of: dict[date, set[str]]
) -> None:
    folded = fold_spend(given_spends, agents_of)
    for day in {key.day for key in folded.sums}:
        known = agents_of.get(day, set())
        own = {key.agent_id for key in folded.sums if key.day == day} - {NO_AGENT, FURTHER_AGENTS}
        assert len(own | known) <= max(3, len(known))
        # An agent that has a row keeps it, and direct calls are no agent's.
        for key, spend in given_spends.items():
            if key.day == day and (key.agent_id in known or key.agent_id == NO_AGENT):
                assert folded.sums[key] == spend


@given(st.lists(st.tuples(keys, spends), max_size=40))
def test_sums_in_memory_are_bounded_and_complete(noted: list[tuple[SpendKey, Spend]]) -> None:
    known = SpendSums()
    for key, spend in noted:
        known.add(key, spend)
    assert sum(known.sums.values(), start=NOTHING) == sum((one for _, one in noted), start=NOTHING)
    for day in {key.day for key in known.sums}:
        own = {key.agent_id for key in known.sums if key.day == day} - {NO_AGENT, FURTHER_AGENTS}
        assert len(own) <= 3


@given(
    moments,
    st.timedeltas(timedelta(0), timedelta(days=KEPT_DAYS)),
)
def test_span_has_the_kept_days_that_begin_in_it(start: datetime, length: timedelta) -> None:
    span = SpendSpan.of(start, start + length, NOW)
    every = [date(2029, 5, 1) + timedelta(days=number) for number in range(600)]
    expected = [
        day
        for day in every
        if start <= midnight(day) < start + length and day > NOW.date() - timedelta(days=KEPT_DAYS)
    ]
    assert [day for day in every if span.first <= day <= span.last] == expected
