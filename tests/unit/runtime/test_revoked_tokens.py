"""The list of revoked tokens is bounded and forgets those first that expire first."""

from datetime import UTC, datetime

from spawnmesh_runtime.revoked_tokens import RevokedTokens, revocation_key

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def revoked(max_count: int) -> RevokedTokens:
    return RevokedTokens(max_count=max_count, clock=lambda: NOW)


def test_expired_entries_are_removed_before_any_other() -> None:
    tokens = revoked(10)
    for number in range(5):
        tokens.add(f"acme/old-{number}", NOW.timestamp() - 1)
    for number in range(6):
        tokens.add(f"acme/new-{number}", NOW.timestamp() + number + 1)
    assert len(tokens) == 6
    assert all(f"acme/new-{number}" in tokens for number in range(6))


def test_entries_that_expire_first_are_forgotten_if_there_are_too_many() -> None:
    tokens = revoked(10)
    tokens.add("acme/client", NOW.timestamp() + 86_400)
    for number in range(10):
        tokens.add(f"acme/run-{number}", NOW.timestamp() + 300 + number)
    assert len(tokens) == 9
    assert "acme/client" in tokens
    assert [f"acme/run-{number}" in tokens for number in (0, 1, 2, 9)] == [False, False, True, True]


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
    tokens.add("acme/b", NOW.timestamp() + 1)
    assert sorted(ended) == ["a", "again"]
