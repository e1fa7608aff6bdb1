"""The events that wait to be stored: a bounded number, of which some stand for several calls."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice

from spawnmesh_core.audit_event import AuditEvent
from spawnmesh_core.ids import IdKind, new_id

from spawnmesh_postgres.audit.chain import ChainedEvent
from spawnmesh_postgres.audit.shares import Party, Shares
from spawnmesh_postgres.audit.store import NO_TENANT

EVENTS_LOST = "AUDIT_EVENTS_LOST"
"""The reason of an event that stands for calls that were not recorded."""

_MAX_LOSSES = 1_000
"""Tenants whose lost calls are counted one by one; those of others are counted without a tenant."""

_OPERATOR = "admin"
_OF_THE_TENANT = "tenant"


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
    """At most `max_events` events, shared by parties: the tenants, operators of the mesh, and all
    callers that are not known.

    If there is no room for an event, the party with the most events loses its newest one, which may
    be the event itself. A party that floods the buffer thus loses its own events, and no party
    loses one while another has more.
    """

    def __init__(self, max_events: int, on_loss: Callable[[int], None]) -> None:
        self._max_events = max_events
        self._on_loss = on_loss
        self._events: dict[int, PendingEvent] = {}
        self._next_number = 0
        self._merging: dict[tuple[object, ...], PendingEvent] = {}
        self._shares = Shares()
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
        pending, party = PendingEvent(event), _party(event)
        if len(self._events) >= self._max_events:
            if self._shares.is_largest(party):
                self._lose(pending)
                return
            newest = self._events.pop(self._shares.drop_newest_of_largest())
            self._forget_merging(newest)
            self._lose(newest)
        self._events[self._next_number] = pending
        self._shares.add(party, self._next_number)
        self._next_number += 1
        if event.merges:
            self._merging[event.key] = pending

    def take(self, limit: int) -> list[PendingEvent]:
        """Remove and return the oldest events; when none is left, also those for lost calls."""
        taken = []
        for number in list(islice(self._events, limit)):
            pending = self._events.pop(number)
            self._shares.drop_oldest(_party(pending.event))
            self._forget_merging(pending)
            taken.append(pending)
        if not self._events and self._last_loss is not None:
            taken += [self._loss(tenant_id, count) for tenant_id, count in self._losses.items()]
            self._losses.clear()
        return taken

    def _forget_merging(self, pending: PendingEvent) -> None:
        if pending.event.merges:
            self._merging.pop(pending.event.key, None)

    def _lose(self, lost: PendingEvent) -> None:
        tenant_id = lost.event.tenant_id
        is_counted = tenant_id in self._losses or len(self._losses) < _MAX_LOSSES
        self._losses[tenant_id if is_counted else ""] += lost.call_count
        self._last_loss = lost.last_time or lost.event.event_time
        self._on_loss(lost.call_count)

    def _loss(self, tenant_id: str, count: int) -> PendingEvent:
        assert self._last_loss is not None
        event = AuditEvent(tenant_id, "", "DATA_LOSS", self._last_loss, reason=EVENTS_LOST)
        return PendingEvent(event, call_count=count)


def _party(event: AuditEvent) -> Party:
    """Return the party whose room the event takes.

    An operator's event about a tenant is in the chain of the tenant, and takes no room of it.
    """
    kind = event.caller_kind if event.caller_kind in ("", _OPERATOR) else _OF_THE_TENANT
    return (kind, event.tenant_id if kind == _OF_THE_TENANT else "")
