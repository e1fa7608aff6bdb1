"""Events that wait: alike ones are counted together, and what does not fit is counted."""

from datetime import UTC, datetime, timedelta

from spawnmesh_core.audit_event import AuditEvent
from spawnmesh_postgres.audit.buffer import EVENTS_LOST, AuditBuffer, PendingEvent

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
    return AuditBuffer(size, lambda: losses.append(1)), losses


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
    assert len(losses) == 3
    assert shown(buffer.take(2)) == [("acme", "OK", 1)] * 2
    assert shown(buffer.take(10)) == [("acme", "OK", 1), ("acme", EVENTS_LOST, 2), ("other", EVENTS_LOST, 1)]
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
