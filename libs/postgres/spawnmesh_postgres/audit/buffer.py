"""The events that wait to be stored: a bounded number, of which some stand for several calls."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from spawnmesh_core.audit_event import AuditEvent
from spawnmesh_core.ids import IdKind, new_id

from spawnmesh_postgres.audit.chain import ChainedEvent
from spawnmesh_postgres.audit.store import NO_TENANT

EVENTS_LOST = "AUDIT_EVENTS_LOST"
"""The reason of an event that stands for calls that were not recorded."""

_MAX_LOSSES = 1_000
"""Tenants whose lost calls are counted one by one; those of others are counted without a tenant."""


@dataclass(slots=True)
class PendingEvent:
    """An event with the number of calls that it stands for, and the time of the last one."""

    event: AuditEvent
    call_count: int = 1
    last_time: datetime | None = None
    event_id: str = field(default_factory=lambda: new_id(IdKind.AUDIT_EVENT))

    def as_stored(self) -> ChainedEvent:
        """Return it as it is stored, without its place in the chain."""
        event = self.event
        return ChainedEvent(
            tenant_id=event.tenant_id or NO_TENANT,
            sequence=0,
            event_id=self.event_id,
            event_time=event.event_time,
            last_time=self.last_time or event.event_time,
            call_count=self.call_count,
            method=event.method,
            caller_kind=event.caller_kind,
            subject=event.subject,
            token_id=event.token_id,
            resources=event.resources,
            code=event.code,
            reason=event.reason,
            trace_id=event.trace_id,
            peer=event.peer,
        )


class AuditBuffer:
    """At most `max_events` events.

    Those of callers that are not known take half of the room at most: a flood of calls without a
    token does not push out the events of others.
    """

    def __init__(self, max_events: int, on_loss: Callable[[], None]) -> None:
        self._max_events = max_events
        self._on_loss = on_loss
        self._events: list[PendingEvent] = []
        self._merging: dict[tuple[object, ...], PendingEvent] = {}
        self._anonymous_count = 0
        self._losses: Counter[str] = Counter()
        self._last_loss: datetime | None = None

    def __len__(self) -> int:
        return len(self._events) + len(self._losses)

    def add(self, event: AuditEvent) -> None:
        """Add an event, or count it: to one that is alike, or as lost if there is no room."""
        if event.merges and (alike := self._merging.get(event.key)) is not None:
            alike.call_count += 1
            alike.last_time = event.event_time
            return
        is_anonymous = not event.caller_kind
        if len(self._events) >= self._max_events or (
            is_anonymous and self._anonymous_count >= self._max_events // 2
        ):
            self._lose(event)
            return
        pending = PendingEvent(event)
        self._events.append(pending)
        self._anonymous_count += is_anonymous
        if event.merges:
            self._merging[event.key] = pending

    def take(self, limit: int) -> list[PendingEvent]:
        """Remove and return the oldest events; when none is left, also those for lost calls."""
        taken, self._events = self._events[:limit], self._events[limit:]
        for pending in taken:
            self._anonymous_count -= not pending.event.caller_kind
            if pending.event.merges:
                self._merging.pop(pending.event.key, None)
        if not self._events and self._last_loss is not None:
            taken += [self._loss(tenant_id, count) for tenant_id, count in self._losses.items()]
            self._losses.clear()
        return taken

    def _lose(self, event: AuditEvent) -> None:
        is_counted = event.tenant_id in self._losses or len(self._losses) < _MAX_LOSSES
        self._losses[event.tenant_id if is_counted else ""] += 1
        self._last_loss = event.event_time
        self._on_loss()

    def _loss(self, tenant_id: str, count: int) -> PendingEvent:
        assert self._last_loss is not None
        event = AuditEvent(tenant_id, "", "DATA_LOSS", self._last_loss, reason=EVENTS_LOST)
        return PendingEvent(event, call_count=count)
