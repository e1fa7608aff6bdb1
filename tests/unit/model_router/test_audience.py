"""Which tenants a cooldown concerns, for any order of failures and answers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_model_router.domain.audience import (
    CONFIRM_WITHIN,
    TenantFailure,
    audience_of,
    is_conclusive,
)
from spawnmesh_model_router.domain.cooldown import (
    LONGEST_OF_ALL,
    LONGEST_RETRY_AFTER,
    Audience,
    Cooldown,
    CooldownTarget,
    Scope,
    extend,
    has_same_cooldown,
)
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.metrics import RouterMetrics
from spawnmesh_model_router.operations.cooldown_cache import CooldownCache
from spawnmesh_postgres.listener import Subscription
from spawnmesh_runtime.metrics import NO_METRICS

R = FailoverReason
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
TARGET = CooldownTarget(Scope.MODEL, "p/m")
OUTSIDER = "initech"


def failure(tenant_id: str, reason: R = R.SERVER_ERROR, seconds: float = 0) -> TenantFailure:
    return TenantFailure(tenant_id, reason, NOW + timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("later", "audience"),
    [
        (failure("globex", seconds=1), Audience.ALL_TENANTS),
        (failure("globex", R.TIMEOUT, 1), Audience.TENANT),
        (failure("globex", seconds=300), Audience.ALL_TENANTS),
        (failure("globex", seconds=301), Audience.TENANT),
        (failure("globex", seconds=-301), Audience.TENANT),
        (failure("globex", R.RATE_LIMIT, 1), Audience.TENANT),
        (failure("acme", seconds=1), Audience.TENANT),
    ],
)
def test_failure_is_confirmed_by_another_tenant_with_the_like_soon(
    later: TenantFailure, audience: Audience
) -> None:
    assert audience_of(later, failure("acme")) is audience
    assert audience_of(later, None) is Audience.TENANT


def test_only_what_comes_before_the_request_is_conclusive() -> None:
    assert is_conclusive(R.AUTH, 401, is_answer=True)
    assert is_conclusive(R.AUTH_PERMANENT, 401, is_answer=True)
    assert is_conclusive(R.TLS_CERTIFICATE, 0, is_answer=False)
    assert not is_conclusive(R.TLS_CERTIFICATE, 0, is_answer=True)
    assert not is_conclusive(R.AUTH, 403, is_answer=True)
    others = set(R) - {R.AUTH, R.AUTH_PERMANENT, R.TLS_CERTIFICATE}
    assert not any(is_conclusive(reason, 401, is_answer=True) for reason in others)


@given(
    st.sampled_from([R.RATE_LIMIT, R.SERVER_ERROR, R.BILLING, R.AUTH_PERMANENT]),
    st.sampled_from(Audience),
    st.lists(st.integers(0, 10**9), min_size=1, max_size=30),
)
def test_wait_that_a_request_can_cause_has_a_bound(
    reason: R, audience: Audience, waits: Sequence[int]
) -> None:
    first = extend(None, reason, NOW, timedelta(seconds=waits[0]), audience=audience)
    plain = extend(None, reason, NOW, audience=audience)
    assert first is not None
    assert plain is not None
    assert first.until <= max(plain.until, NOW + LONGEST_RETRY_AFTER[audience])
    cooldown: Cooldown | None = None
    now = NOW
    for seconds in waits:  # It fails again after each cooldown.
        cooldown = extend(cooldown, reason, now, timedelta(seconds=seconds), audience=audience)
        assert cooldown is not None
        assert cooldown.until - now <= (
            LONGEST_OF_ALL if audience is Audience.ALL_TENANTS else 24 * LONGEST_OF_ALL
        )
        now = cooldown.until


@dataclass(frozen=True)
class Call:
    """A call that ends some milliseconds after the one before. It fails if there is a reason."""

    tenant_id: str
    reason: R | None
    milliseconds: int
    retry_after: int | None


def calls(tenants: Sequence[str]) -> st.SearchStrategy[list[Call]]:
    reasons = st.sampled_from([R.RATE_LIMIT, R.SERVER_ERROR, R.TIMEOUT, R.OVERLOADED, None])
    waits = st.none() | st.integers(0, 100_000)
    one = st.builds(Call, st.sampled_from(tenants), reasons, st.integers(1, 400_000), waits)
    return st.lists(one, max_size=40)


def play(made: Sequence[Call]) -> list[tuple[datetime, Call, Cooldown | None]]:
    """Make the calls. Return the time of each and what an outsider is kept from afterwards."""

    async def played() -> list[tuple[datetime, Call, Cooldown | None]]:
        no_database: Any = None
        cache = CooldownCache(no_database, Subscription(), RouterMetrics(NO_METRICS.meter))
        now, seen = NOW, []
        for call in made:
            now += timedelta(milliseconds=call.milliseconds)
            if call.reason is None:
                cache.record_success(TARGET, call.tenant_id, now)
            else:
                after = None if call.retry_after is None else call.retry_after * SECOND
                cache.record_failure(TARGET, TenantFailure(call.tenant_id, call.reason, now), after)
            seen.append((now, call, cache.get(TARGET, OUTSIDER)))
        return seen

    return asyncio.run(played())


@given(calls(["acme"]))
def test_one_tenant_alone_takes_a_model_from_no_other(made: list[Call]) -> None:
    assert all(cooldown is None for _, _, cooldown in play(made))


@given(calls(["acme", "globex", "umbrella"]))
def test_model_rests_for_all_only_after_the_like_failures_of_two_tenants(made: list[Call]) -> None:
    steps = play(made)
    for index, (now, call, cooldown) in enumerate(steps):
        before = steps[index - 1][2] if index else None
        if cooldown is None or cooldown == before:
            continue
        assert call.reason is not None
        assert cooldown.until - now <= LONGEST_OF_ALL or cooldown.until == (before and before.until)
        confirmed = False
        for time, other, _ in reversed(steps[:index]):
            if other.reason is None or now - time > CONFIRM_WITHIN:
                break
            confirmed |= other.tenant_id != call.tenant_id and has_same_cooldown(call.reason, other.reason)
        assert confirmed


def test_two_failures_confirm_each_other_once() -> None:
    tenants = ("acme", "globex", "globex", "acme")
    made = [Call(tenant_id, R.TIMEOUT, 40_000, None) for tenant_id in tenants]
    failures = [cooldown and cooldown.failures for _, _, cooldown in play(made)]
    assert failures == [None, 1, 1, 2]
