"""Events that wait: alike ones are counted together, and what does not fit is counted."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from spawnmesh_core.audit_event import AuditEvent
from spawnmesh_postgres.audit.buffer import EVENTS_LOST, AuditBuffer, PendingEvent
from spawnmesh_postgres.audit.shares import Party, Shares

NOW = datetime(2026, 11, 27, tzinfo=UTC)


def event(
    number: int = 0, *, tenant_id: str = "acme", kind: str = "client", denied: bool = False
) -> AuditEvent:
    return AuditEvent(
        tenant_id,
        "x.Y/Z",
        "PERMISSION_DENIED" if denied else "OK",
        NOW + timedelta(seconds=number),
        caller_kind=kind,
        subject="" if kind == "" else "mallory",
        resources=() if denied else (f"session_id=ses_{number}",),
        merges=denied,
    )


def buffer_of(size: int) -> tuple[AuditBuffer, list[int]]:
    losses: list[int] = []
    return AuditBuffer(size, losses.append), losses


def shown(taken: list[PendingEvent]) -> list[tuple[str, str, int]]:
    return [(one.event.tenant_id, one.event.reason or one.event.code, one.call_count) for one in taken]


def test_alike_denials_are_one_event_with_their_number() -> None:
    buffer, losses = buffer_of(4)
    for number in range(1000):
        buffer.add(event(number, denied=True))
    (one,) = buffer.take(10)
    assert (one.call_count, one.event.event_time, one.last_time) == (1000, NOW, NOW + timedelta(seconds=999))
    assert losses == []
    buffer.add(event(denied=True))
    assert shown(buffer.take(10)) == [("acme", "PERMISSION_DENIED", 1)]


def test_changes_are_events_of_their_own() -> None:
    buffer, _ = buffer_of(4)
    buffer.add(event(1))
    buffer.add(event(1))
    assert [one.call_count for one in buffer.take(10)] == [1, 1]


def test_calls_that_do_not_fit_are_counted_by_tenant() -> None:
    buffer, losses = buffer_of(3)
    for number in range(5):
        buffer.add(event(number))
    buffer.add(event(9, tenant_id="other"))
    assert losses == [1, 1, 1]
    assert shown(buffer.take(2)) == [("acme", "OK", 1)] * 2
    assert shown(buffer.take(10)) == [("other", "OK", 1), ("acme", EVENTS_LOST, 3)]
    assert len(buffer) == 0
    buffer.add(event())
    assert shown(buffer.take(10)) == [("acme", "OK", 1)]


def test_callers_without_a_token_leave_room_for_others() -> None:
    buffer, losses = buffer_of(10)
    for number in range(50):
        anonymous = AuditEvent("", f"x.Y/Z{number}", "UNAUTHENTICATED", NOW, merges=True)
        buffer.add(anonymous)
    for number in range(5):
        buffer.add(event(number))
    assert len(losses) == 45
    taken = buffer.take(100)
    assert [one.event.code for one in taken].count("OK") == 5
    assert sum(one.call_count for one in taken) == 55


def refusal(number: int) -> AuditEvent:
    """Return a refused change with an id of its own, which is like no other event."""
    return AuditEvent(
        "loud", "x.Y/Z", "NOT_FOUND", NOW, caller_kind="client", resources=(f"id=ses_{number}",)
    )


@pytest.mark.parametrize("is_loud_first", [True, False])
def test_a_tenant_that_floods_the_buffer_loses_its_own_events_alone(is_loud_first: bool) -> None:
    buffer, losses = buffer_of(100)
    quiet = [event(number, tenant_id=f"t{number % 5}") for number in range(50)]
    flood = [refusal(number) for number in range(1000)]
    for one in flood + quiet if is_loud_first else quiet + flood:
        buffer.add(one)
    taken = buffer.take(1000)
    assert Counter(one.event.tenant_id for one in taken if one.event.code == "OK") == {
        f"t{number}": 10 for number in range(5)
    }
    kept = [one.event for one in taken if one.event.code == "NOT_FOUND"]
    assert kept == flood[:50], "the newest ones are lost"
    assert shown(taken)[-1] == ("loud", EVENTS_LOST, 950)
    assert sum(losses) == 950


def test_a_tenant_alone_has_the_whole_buffer() -> None:
    buffer, losses = buffer_of(100)
    for number in range(100):
        buffer.add(event(number))
    assert len(buffer) == 100
    assert losses == []


def test_lost_event_that_stands_for_several_calls_is_counted_with_all_of_them() -> None:
    buffer, losses = buffer_of(2)
    buffer.add(event(1))
    for number in range(3):
        buffer.add(event(number, denied=True))
    buffer.add(event(9, tenant_id="other"))
    assert losses == [3]
    buffer.add(event(denied=True))
    assert losses == [3, 1], "the event that it would be counted with is lost"
    assert shown(buffer.take(10)) == [("acme", "OK", 1), ("other", "OK", 1), ("acme", EVENTS_LOST, 4)]


def test_operators_of_the_mesh_keep_their_events_in_the_chain_of_a_tenant_that_floods() -> None:
    buffer, _ = buffer_of(10)
    for number in range(50):
        buffer.add(refusal(number))
    for number in range(3):
        buffer.add(event(number, tenant_id="loud", kind="admin"))
    taken = buffer.take(10)
    assert Counter(one.event.caller_kind for one in taken[:10]) == {"client": 7, "admin": 3}


def test_shares_know_the_party_with_the_most_events_after_any_changes() -> None:
    dice = random.Random(5)
    shares = Shares()
    parties: list[Party] = [("tenant", name) for name in "abcd"]
    held: dict[Party, list[int]] = {party: [] for party in parties}
    for number in range(5000):
        most = max(len(numbers) for numbers in held.values())
        assert [shares.is_largest(one) for one in parties] == [len(held[one]) == most for one in parties]
        party = dice.choice(parties)
        what = dice.random()
        if what < 0.5:
            shares.add(party, number)
            held[party].append(number)
        elif what < 0.8 and held[party]:
            shares.drop_oldest(party)
            held[party].pop(0)
        elif most:
            dropped = shares.drop_newest_of_largest()
            [largest] = [one for one in parties if held[one] and held[one][-1] == dropped]
            assert len(held[largest]) == most
            held[largest].pop()
