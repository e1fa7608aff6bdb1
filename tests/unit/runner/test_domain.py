"""The pure rules of a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runner.domain import (
    LATE_TURN_COUNT,
    RUNNER_ERROR,
    TURN_LIMIT_EXCEEDED,
    Compacting,
    Spending,
    TurnLimitExceeded,
    Turns,
    answer_key,
    backoff_seconds,
    call_request_id,
    failure_of,
    fresh_token_count,
    result_key,
)

RUN = "run_" + "0" * 26
ENTRY = "ent_" + "0" * 26


def test_keys_differ_by_epoch_and_turn_and_fit_the_contracts() -> None:
    keys = {answer_key(RUN, epoch, turn) for epoch in (1, 2, 12) for turn in (1, 2, 21)}
    assert len(keys) == 9
    assert all(len(key) <= 128 for key in [*keys, result_key(ENTRY, 255), call_request_id(ENTRY, 255)])


def test_two_calls_of_one_answer_ask_for_different_things() -> None:
    assert call_request_id(ENTRY, 0) != call_request_id(ENTRY, 1)
    assert call_request_id(ENTRY, 0) == call_request_id(ENTRY, 0)


@given(attempt=st.integers(0, 10_000), jitter=st.floats(0, 0.999), floor=st.none() | st.floats(0, 1000))
def test_backoff_is_bounded_and_not_below_what_the_peer_asked(attempt: int, jitter: float, floor: float | None) -> None:
    pause = backoff_seconds(attempt, jitter=jitter, floor=floor)
    assert 0.05 <= pause <= 5.0
    assert pause >= min(floor or 0.0, 5.0)


def test_backoff_doubles() -> None:
    pauses = [backoff_seconds(attempt, jitter=0.0) for attempt in range(8)]
    assert pauses[:3] == [0.05, 0.1, 0.2]
    assert pauses[-1] == 2.5


def test_a_refusal_of_the_mesh_fails_the_run_with_its_own_reason_on_one_line() -> None:
    failure = failure_of(MeshError(Reason.ALL_CANDIDATES_FAILED, "nobody\nanswered " + "x" * 2000))
    assert failure.reason == "ALL_CANDIDATES_FAILED"
    assert failure.message.startswith("nobody answered xx")
    assert len(failure.message) == 1000


def test_a_run_without_turns_left_says_so() -> None:
    assert failure_of(TurnLimitExceeded(50)).reason == TURN_LIMIT_EXCEEDED


@pytest.mark.parametrize(("taken", "left"), [(2, 1), (3, LATE_TURN_COUNT), (5, LATE_TURN_COUNT - 2)])
def test_messages_before_a_draft_of_the_last_turn_give_turns_once(taken: int, left: int) -> None:
    turns = Turns(3, taken_count=taken)
    turns.count_late_messages()
    turns.count_late_messages()
    took = 0
    while turns.may_go_on:
        turns.taken_count += 1
        took += 1
    assert took == left


@pytest.mark.parametrize("error", [OSError(2, "no such file", "/secret/path"), ValueError("the content")])
def test_any_other_error_is_not_repeated(error: Exception) -> None:
    failure = failure_of(error)
    assert failure.reason == RUNNER_ERROR
    assert "secret" not in failure.message
    assert "content" not in failure.message


def test_spending_adds_up() -> None:
    spending = Spending()
    spending.add(input_=1, output=2, cache_read=3, cache_write=4)
    spending.add(input_=10, output=20, cache_read=30, cache_write=40)
    assert spending == Spending(11, 22, 33, 44)


def test_a_small_budget_has_a_shorter_fresh_end() -> None:
    assert [fresh_token_count(budget) for budget in (1, 20_000, 96_000, 1_000_000)] == [1, 5_000, 24_000, 24_000]


def test_compactions_are_asked_for_until_a_few_have_failed() -> None:
    assert [Compacting(failed_count).is_worth_asking for failed_count in range(4)] == [True, True, False, False]
