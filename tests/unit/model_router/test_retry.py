"""When to call the same candidate again."""

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_model_router.domain.reasons import TRANSIENT_REASONS, FailoverReason
from spawnmesh_model_router.domain.retry import (
    BASE_SECONDS,
    MAX_BACKOFF_SECONDS,
    MoveOn,
    MoveOnReason,
    Wait,
    after_failure,
    cooldown_wait,
    parse_retry_after,
    tries_allowed,
)

R = FailoverReason
NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def decide(
    tries: int,
    reason: FailoverReason = R.TIMEOUT,
    *,
    retry_after: float | None = None,
    remaining: float = 1e6,
    spent: float = 0.0,
    draw: float = 0.0,
    max_tries: int | None = None,
) -> Wait | MoveOn:
    return after_failure(
        tries,
        reason,
        retry_after=retry_after,
        remaining=remaining,
        spent=spent,
        draw=draw,
        max_tries=max_tries,
    )


def test_backoff_doubles_with_jitter_up_to_its_longest() -> None:
    assert [decide(tries, R.RATE_LIMIT, draw=0.0) for tries in (1, 2, 3, 9)] == [
        Wait(0.5),
        Wait(1.0),
        Wait(2.0),
        Wait(15.0),
    ]
    assert decide(9, R.RATE_LIMIT, draw=0.5) == Wait(22.5)


def test_rate_limit_is_tried_ten_times_and_others_eight() -> None:
    assert isinstance(decide(9, R.RATE_LIMIT), Wait)
    assert decide(10, R.RATE_LIMIT) == MoveOn(MoveOnReason.TRIES_SPENT)
    assert isinstance(decide(7), Wait)
    assert decide(8) == MoveOn(MoveOnReason.TRIES_SPENT)


def test_tenant_may_choose_fewer_tries_but_not_more() -> None:
    assert decide(2, max_tries=2) == MoveOn(MoveOnReason.TRIES_SPENT)
    assert decide(8, max_tries=50) == MoveOn(MoveOnReason.TRIES_SPENT)


@pytest.mark.parametrize("reason", sorted(set(FailoverReason) - TRANSIENT_REASONS))
def test_reason_that_does_not_pass_moves_on_at_once(reason: FailoverReason) -> None:
    assert decide(1, reason) == MoveOn(MoveOnReason.NOT_TRANSIENT)


def test_retry_after_is_a_floor_and_waited_for_within_the_deadline() -> None:
    assert decide(1, R.RATE_LIMIT, retry_after=20) == Wait(20)
    assert decide(1, R.RATE_LIMIT, retry_after=20, draw=0.5) == Wait(20.5)
    assert decide(1, R.RATE_LIMIT, retry_after=90, remaining=100) == Wait(90)
    assert decide(1, R.RATE_LIMIT, retry_after=90, remaining=80) == MoveOn(MoveOnReason.DEADLINE)
    assert decide(9, R.RATE_LIMIT, retry_after=1) == Wait(15)


def test_a_cooldown_is_waited_out_if_it_ends_before_the_deadline() -> None:
    assert cooldown_wait([40, 20], 30, 0.5) == 20.5
    assert cooldown_wait([40, 20], 20, 0.0) is None
    assert cooldown_wait([], 30, 0.0) is None
    assert cooldown_wait([3600], math.inf, 0.0) is None


def test_other_transient_reasons_stop_after_ninety_seconds() -> None:
    assert decide(3, spent=88) == Wait(2.0)
    assert decide(3, spent=89) == MoveOn(MoveOnReason.WINDOW_SPENT)
    assert decide(3, R.RATE_LIMIT, spent=89) == Wait(2.0)


def test_wait_that_outlasts_the_deadline_is_not_begun() -> None:
    assert decide(3, remaining=2.0) == MoveOn(MoveOnReason.DEADLINE)
    assert decide(3, remaining=2.1) == Wait(2.0)


@given(
    st.integers(1, 12),
    st.sampled_from(FailoverReason),
    st.none() | st.floats(0, 1e5),
    st.floats(0, 1e4),
    st.floats(0, 1, exclude_max=True),
)
def test_wait_is_at_least_the_floor_and_ends_in_time(
    tries: int, reason: FailoverReason, retry_after: float | None, remaining: float, draw: float
) -> None:
    decision = decide(tries, reason, retry_after=retry_after, remaining=remaining, draw=draw)
    if isinstance(decision, Wait):
        floor = retry_after or 0.5
        assert floor <= decision.seconds < max(floor, MAX_BACKOFF_SECONDS) + BASE_SECONDS
        assert decision.seconds < remaining


def test_retry_after_in_seconds_or_as_a_date() -> None:
    assert parse_retry_after(" 7 ", NOW) == 7
    assert parse_retry_after("1.5", NOW) == 1.5
    assert parse_retry_after("Thu, 01 Jan 2026 12:01:30 GMT", NOW) == 90
    assert parse_retry_after("Thu, 01 Jan 2026 11:00:00 GMT", NOW) == 0


@pytest.mark.parametrize("value", ["", "soon", "-1", "nan", "inf", "Thu, 99 Foo 2026"])
def test_retry_after_that_says_neither_is_ignored(value: str) -> None:
    assert parse_retry_after(value, NOW) is None


def test_nobody_waits_for_a_rate_limit_while_another_can_answer() -> None:
    def allowed(reason: FailoverReason, *, others_ready: bool, is_silent: bool = False) -> int:
        return tries_allowed(
            reason, is_silent=is_silent, others_ready=others_ready, before_failover=3, at_last=8
        )

    assert allowed(R.RATE_LIMIT, others_ready=True) == 1
    assert allowed(R.SERVER_ERROR, others_ready=True) == 3
    assert allowed(R.TIMEOUT, others_ready=True, is_silent=True) == 1
    assert allowed(R.RATE_LIMIT, others_ready=False) == 8
    assert allowed(R.TIMEOUT, others_ready=False, is_silent=True) == 8
