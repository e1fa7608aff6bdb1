"""The duration of a cooldown, and its deadline, which only moves later."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_model_router.domain.cooldown import Audience, Cooldown, Scope, extend, scope_of, should_probe
from spawnmesh_model_router.domain.reasons import FailoverReason

R = FailoverReason
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
RESTLESS = {
    R.NO_FAILOVER,
    R.FORMAT,
    R.CONTEXT_OVERFLOW,
    R.SESSION_EXPIRED,
    R.EMPTY_RESPONSE,
    R.UNCLASSIFIED,
}


def rests(reason: FailoverReason, failures: int, audience: Audience = Audience.TENANT) -> list[float]:
    """Return the seconds of each cooldown if the target fails again right after each of them."""
    found: list[float] = []
    cooldown: Cooldown | None = None
    now = NOW
    for _ in range(failures):
        cooldown = extend(cooldown, reason, now, audience=audience)
        assert cooldown is not None
        found.append((cooldown.until - now).total_seconds())
        now = cooldown.until
    return found


def rested(
    existing: Cooldown | None, reason: FailoverReason, now: datetime, after: timedelta | None = None
) -> Cooldown:
    cooldown = extend(existing, reason, now, after, audience=Audience.TENANT)
    assert cooldown is not None
    return cooldown


def test_ordinary_failures_rest_thirty_sixty_then_three_hundred_seconds() -> None:
    assert rests(R.TIMEOUT, 5) == [30, 60, 300, 300, 300]


def test_rate_limit_doubles_up_to_a_day() -> None:
    found = rests(R.RATE_LIMIT, 14)
    assert found[:4] == [30, 60, 120, 240]
    assert found[-2:] == [86400, 86400]


def test_cooldown_of_all_tenants_is_an_hour_at_most() -> None:
    assert rests(R.RATE_LIMIT, 9, Audience.ALL_TENANTS)[-3:] == [1920, 3600, 3600]
    assert rests(R.BILLING, 5, Audience.ALL_TENANTS) == [600, 1200, 2400, 3600, 3600]


def test_billing_and_dead_keys_rest_longer() -> None:
    assert rests(R.BILLING, 3) == [600, 1200, 2400]
    assert rests(R.AUTH_PERMANENT, 5) == [600, 1200, 2400, 3600, 3600]


def test_count_is_forgotten_after_a_day_without_failure() -> None:
    first = rested(None, R.RATE_LIMIT, NOW)
    assert rested(first, R.RATE_LIMIT, first.until + timedelta(hours=23)).failures == 2
    assert rested(first, R.RATE_LIMIT, first.until + timedelta(hours=24)).failures == 1


def test_failures_of_calls_under_way_at_once_count_once() -> None:
    cooldown = rested(None, R.RATE_LIMIT, NOW)
    for tick in range(20):
        cooldown = rested(cooldown, R.RATE_LIMIT, NOW + tick * SECOND)
    assert (cooldown.failures, cooldown.until) == (1, NOW + 49 * SECOND)


@pytest.mark.parametrize(
    ("audience", "longest"),
    [(Audience.TENANT, timedelta(hours=1)), (Audience.ALL_TENANTS, timedelta(minutes=5))],
)
def test_retry_after_is_a_floor_and_capped(audience: Audience, longest: timedelta) -> None:
    def until(reason: FailoverReason, after: timedelta) -> datetime:
        cooldown = extend(None, reason, NOW, after, audience=audience)
        assert cooldown is not None
        return cooldown.until

    assert until(R.RATE_LIMIT, 10 * SECOND) == NOW + 30 * SECOND
    assert until(R.RATE_LIMIT, timedelta(minutes=4)) == NOW + timedelta(minutes=4)
    assert until(R.RATE_LIMIT, timedelta(days=9)) == NOW + longest
    assert until(R.TIMEOUT, timedelta(days=9)) == NOW + timedelta(minutes=5)


def test_lesser_failure_does_not_replace_a_longer_rest() -> None:
    dead = rested(None, R.BILLING, NOW)
    assert extend(dead, R.AUTH, NOW + 40 * SECOND, audience=Audience.TENANT) is dead


@pytest.mark.parametrize("reason", sorted(RESTLESS))
def test_reason_about_the_request_makes_no_cooldown(reason: FailoverReason) -> None:
    resting = rested(None, R.TIMEOUT, NOW)
    assert extend(None, reason, NOW, audience=Audience.TENANT) is None
    assert extend(resting, reason, NOW + SECOND, audience=Audience.TENANT) is resting


def test_scope_is_what_the_reason_is_about() -> None:
    assert {scope_of(reason) for reason in (R.RATE_LIMIT, R.TIMEOUT, R.MODEL_NOT_FOUND)} == {Scope.MODEL}
    assert {scope_of(reason) for reason in (R.BILLING, R.AUTH, R.AUTH_PERMANENT)} == {Scope.CREDENTIAL}
    assert scope_of(R.TLS_CERTIFICATE) is Scope.PROVIDER


RESTING = Cooldown(Scope.MODEL, NOW + timedelta(seconds=300), 3, R.TIMEOUT, NOW)


def test_only_the_primary_is_probed() -> None:
    late = NOW + 200 * SECOND
    assert should_probe(RESTING, late, is_primary=True)
    assert not should_probe(RESTING, late, is_primary=False)


def test_primary_is_probed_from_two_minutes_before_its_end() -> None:
    assert not should_probe(RESTING, NOW + 179 * SECOND, is_primary=True)
    assert should_probe(RESTING, NOW + 180 * SECOND, is_primary=True)
    assert not should_probe(RESTING, NOW + 300 * SECOND, is_primary=True)


def test_probes_are_half_a_minute_apart_from_failures_and_each_other() -> None:
    now = NOW + 200 * SECOND
    assert not should_probe(RESTING, now, is_primary=True, last_probe=now - 29 * SECOND)
    assert should_probe(RESTING, now, is_primary=True, last_probe=now - 30 * SECOND)
    short = Cooldown(Scope.MODEL, NOW + 60 * SECOND, 2, R.TIMEOUT, NOW)
    assert not should_probe(short, NOW + 29 * SECOND, is_primary=True)


FAILURES = st.tuples(
    st.sampled_from(FailoverReason), st.integers(0, 200_000), st.none() | st.integers(0, 2_000_000)
)


@given(st.lists(FAILURES, max_size=30), st.sampled_from(Scope), st.sampled_from(Audience))
def test_deadline_only_moves_later_while_active(
    failures: list[tuple[FailoverReason, int, int | None]], scope: Scope, audience: Audience
) -> None:
    cooldown: Cooldown | None = None
    now = NOW
    for reason, passed, retry_after in failures:
        if scope_of(reason) not in (scope, None):
            continue
        now += timedelta(milliseconds=passed)
        after = None if retry_after is None else timedelta(seconds=retry_after)
        extended = extend(cooldown, reason, now, after, audience=audience)
        if cooldown is not None:
            assert extended is not None
            assert extended.until >= cooldown.until or not cooldown.active(now)
        if extended is not None:
            assert extended.scope is scope
            assert extended.until - now <= timedelta(hours=24)
        cooldown = extended


@given(st.sampled_from(sorted(set(FailoverReason) - RESTLESS)))
def test_rests_never_get_shorter_with_more_failures(reason: FailoverReason) -> None:
    assert all(earlier <= later for earlier, later in pairwise(rests(reason, 30)))
