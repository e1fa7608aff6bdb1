"""Budgets as bars, and the events and states that are about them."""

from datetime import UTC, datetime, timedelta

import pytest
from spawnmesh_console.domain.budget_limits import LimitAmounts
from spawnmesh_console.domain.budgets import FamilyUsage, LimitBar, UsedBudget
from spawnmesh_console.domain.event_sentences import event_sentence
from spawnmesh_console.domain.states import session_state

NO_LIMITS = LimitAmounts()


def budget(
    limits: LimitAmounts, used: LimitAmounts, *reached: str, wait: timedelta = timedelta(days=7)
) -> UsedBudget:
    return UsedBudget("ses_a", limits, used, frozenset(reached), "1", wait)


def test_there_is_a_bar_for_each_limit_and_the_reached_one_says_so() -> None:
    limits = LimitAmounts(500_000, 200_000, 40, timedelta(minutes=10))
    used = LimitAmounts(523_417, 50_000, 0, timedelta(seconds=90))
    assert budget(limits, used, "COST").bars == (
        LimitBar("COST", 100.0, "0.5234", "0.50", is_reached=True),
        LimitBar("TOKENS", 25.0, "50,000", "200,000", is_reached=False),
        LimitBar("MODEL_CALLS", 0.0, "0", "40", is_reached=False),
        LimitBar("RUN_TIME", 15.0, "1 min 30 s", "10 min 00 s", is_reached=False),
    )
    words = [bar.word for bar in budget(limits, used).bars]
    assert words == ["Cost", "Tokens", "Model calls", "Run time"]


def test_a_limit_that_is_not_set_has_no_bar() -> None:
    assert budget(NO_LIMITS, LimitAmounts(1, 2, 3, timedelta(4))).bars == ()
    (bar,) = budget(LimitAmounts(token_count=3), NO_LIMITS).bars
    assert (bar.name, bar.percent) == ("TOKENS", 0.0)


@pytest.mark.parametrize(
    ("wait", "text"),
    [
        (timedelta(days=7), "7 days"),
        (timedelta(days=1), "a day"),
        (timedelta(hours=2), "2 h 00 min"),
        (timedelta(), ""),
    ],
)
def test_the_wait_is_in_words(wait: timedelta, text: str) -> None:
    assert budget(NO_LIMITS, NO_LIMITS, wait=wait).wait_text == text


def test_the_budget_of_a_session_is_found_among_those_it_shares() -> None:
    own = budget(LimitAmounts(1), NO_LIMITS)
    usage = FamilyUsage(budgets=(own,))
    assert usage.budget_of("ses_a") is own
    assert usage.budget_of("ses_b") is None


def test_a_run_that_waits_for_its_budget_says_so() -> None:
    state = session_state("ACTIVE", "WAITING_BUDGET")
    assert (state.word, state.is_live) == ("waits for its budget", True)
    time = datetime(2026, 1, 31, tzinfo=UTC)
    waits = event_sentence(1, time, "RUN", "WAITING_BUDGET", "cost 0.52 of 0.50", "", "")
    assert (waits.sentence, waits.state) == ("The run waits for its budget.", state)
    changed = event_sentence(2, time, "BUDGET_CHANGED", "", "cost 0.50 -> 1.00 by alice", "", "")
    assert (changed.sentence, changed.detail) == (
        "The limits of the budget were changed.",
        "cost 0.50 -> 1.00 by alice",
    )
