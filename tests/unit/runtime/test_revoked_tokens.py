"""The list of revoked tokens is bounded, and no tenant makes it forget the revocations of another."""

from datetime import UTC, datetime

import pytest
from spawnmesh_runtime.revoked_tokens import RevokedTokens, revocation_key

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MONTH = 30 * 86_400.0


def revoked(max_count: int, max_run_count: int = 10) -> RevokedTokens:
    return RevokedTokens(max_count=max_count, max_run_count=max_run_count, clock=lambda: NOW)


def flood(tokens: RevokedTokens, tenant: str, count: int, seconds: float = MONTH, **kind: bool) -> None:
    """Revoke as many ids of a tenant; the last ones expire last."""
    for number in range(count):
        tokens.add(f"{tenant}/{number}", NOW.timestamp() + seconds + number, **kind)


def left(tokens: RevokedTokens, tenant: str) -> list[int]:
    return [number for number in range(1000) if f"{tenant}/{number}" in tokens]


def test_expired_entries_are_removed_before_any_other() -> None:
    tokens = revoked(10)
    for number in range(5):
        tokens.add(f"acme/old-{number}", NOW.timestamp() - 1)
    for number in range(6):
        tokens.add(f"acme/new-{number}", NOW.timestamp() + number + 1)
    assert len(tokens) == 6
    assert all(f"acme/new-{number}" in tokens for number in range(6))


def test_tenant_with_the_most_entries_loses_its_own_that_expire_first() -> None:
    tokens = revoked(10)
    flood(tokens, "victim", 2, seconds=60)
    flood(tokens, "mallory", 100)
    assert left(tokens, "victim") == [0, 1]
    assert left(tokens, "mallory")[-1] == 99
    assert left(tokens, "mallory")[0] > 90
    assert len(tokens) <= 10


def test_tenants_together_lose_what_is_above_an_equal_share() -> None:
    tokens = revoked(100)
    flood(tokens, "victim", 5, seconds=60)
    for number in range(10):
        flood(tokens, f"mallory-{number}", 50)
    assert left(tokens, "victim") == [0, 1, 2, 3, 4]
    assert len(tokens) <= 100


@pytest.mark.parametrize("is_run", [True, False])
def test_ended_runs_and_revoked_tokens_do_not_displace_each_other(is_run: bool) -> None:
    tokens = revoked(10, max_run_count=10)
    flood(tokens, "acme", 9, seconds=60, is_run=not is_run)
    flood(tokens, "mallory", 1000, is_run=is_run)
    assert left(tokens, "acme") == list(range(9))
    assert len(tokens) <= tokens.capacity == 20


def test_runs_of_a_tenant_are_not_displaced_by_those_of_another() -> None:
    tokens = revoked(10, max_run_count=10)
    flood(tokens, "victim", 2, seconds=60, is_run=True)
    flood(tokens, "mallory", 100, is_run=True)
    assert left(tokens, "victim") == [0, 1]


def test_tokens_without_a_tenant_are_lost_last() -> None:
    tokens = revoked(100)
    for number in range(50):
        tokens.add(revocation_key("", str(number)), NOW.timestamp() + 60)
    for number in range(20):
        flood(tokens, f"mallory-{number}", 50)
    assert all(revocation_key("", str(number)) in tokens for number in range(50))
    assert len(tokens) <= 100


def test_more_tenants_than_entries_leave_the_number_bounded() -> None:
    tokens = revoked(10)
    for number in range(100):
        flood(tokens, f"tenant-{number}", 2)
    assert 0 < len(tokens) <= 10


def test_a_tenant_cannot_name_the_token_of_another_one() -> None:
    tokens = revoked(10)
    tokens.add(revocation_key("acme", "tok_1"), NOW.timestamp() + 1)
    assert revocation_key("acme", "tok_1") in tokens
    assert revocation_key("acm", "e/tok_1") not in tokens
    assert revocation_key("", "tok_1") not in tokens


def test_streams_are_ended_once_and_only_while_they_run() -> None:
    tokens, ended = revoked(10), list[str]()
    with (
        tokens.ending("acme/a", lambda: ended.append("a")),
        tokens.ending("acme/a", lambda: ended.append("again")),
        tokens.ending("acme/b", lambda: ended.append("b")),
    ):
        tokens.add("acme/a", NOW.timestamp() + 1)
        tokens.add("acme/a", NOW.timestamp() + 2)
        tokens.add("acme/a", NOW.timestamp() + 2, is_run=True)
    tokens.add("acme/b", NOW.timestamp() + 1)
    assert sorted(ended) == ["a", "again"]
