"""The outbox of run ends: events that the relay still has to publish to observers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta

from psycopg.types.json import Jsonb
from spawnmesh_postgres.database import ALL_TENANTS, Connection, Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_session.store import work_queue

_SQL = load_statements(__name__)

CHANNEL = "event_pending"
"""The notification channel that wakes the relay."""

_PLUGIN_TRIES = 3  # Tries while the tenant's plugins fail.
_KEPT_FOR = timedelta(days=1)
_MIN_PAUSE, _MAX_PAUSE = timedelta(seconds=5), timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The end of a run, or of a failed spawn, which has no run."""

    session_id: str
    run_id: str
    parent_session_id: str
    outcome: str
    traceparent: str

    @property
    def subject_id(self) -> str:
        """Return the id of the event's entry in the queue."""
        return self.run_id or self.session_id


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """An event that the caller publishes.

    Its delivery target may be requested `tries_left` times.
    """

    tenant_id: str
    event: RunEnded
    tries_left: int


async def insert_pending_event(database: Database, tenant_id: str, event: RunEnded) -> None:
    """Insert the event and wake the relay. Do nothing if it is pending already."""
    values = {
        "tenant_id": tenant_id,
        "subject_id": event.subject_id,
        "details": Jsonb(asdict(event)),
        "attempts_left": _PLUGIN_TRIES,
        "kept_for": _KEPT_FOR,
    }
    async with database.transaction(tenant_id) as connection:
        await connection.execute(_SQL["insert_pending_event"], values)


async def take_pending_events(
    database: Database, limit: int, share: int, busy: Mapping[str, int], held_for: timedelta
) -> list[PendingEvent]:
    """Take at most `limit` events, and of each tenant `share` less the events it is `busy` with.

    No other relay takes them for `held_for`.
    """
    quota = work_queue.TakeQuota(limit, share, busy)
    async with database.transaction(ALL_TENANTS) as connection:
        entries = await work_queue.take_overdue(connection, work_queue.EVENT, quota, held_for)
    return [
        PendingEvent(entry.tenant_id, RunEnded(**entry.details or {}), entry.attempts_left)
        for entry in entries
    ]


async def delete_pending_event(database: Database, pending: PendingEvent) -> None:
    """Remove an event that was delivered or expired."""
    async with database.transaction(pending.tenant_id) as connection:
        await work_queue.delete_entry(
            connection, pending.tenant_id, work_queue.EVENT, pending.event.subject_id
        )


async def delay_pending_event(database: Database, pending: PendingEvent, *, plugins_failed: bool) -> bool:
    """Schedule the next try. If plugins failed: after 5 s, with a try less.

    Else: after the time that the event has waited so far.

    The time waited is limited to 5 min. Return False if the event is expired.
    """
    values = {
        "tenant_id": pending.tenant_id,
        "subject_id": pending.event.subject_id,
        "kept_for": _KEPT_FOR,
        "at_least": _MIN_PAUSE,
        "at_most": _MIN_PAUSE if plugins_failed else _MAX_PAUSE,
        "used": int(plugins_failed),
    }
    async with database.transaction(pending.tenant_id) as connection:
        row = await (await connection.execute(_SQL["delay_pending_event"], values)).fetchone()
    return row is None or not row["is_expired"]


async def return_pending_event(database: Database, pending: PendingEvent) -> None:
    """Make the event due now for another relay."""
    async with database.transaction(pending.tenant_id) as connection:
        await work_queue.delay_entry(
            connection, pending.tenant_id, work_queue.EVENT, pending.event.subject_id, timedelta(0)
        )


async def drop_pending_events(connection: Connection, tenant_id: str) -> int:
    """Drop the tenant's pending events; return their number."""
    return (await connection.execute(_SQL["drop_pending_events"], {"tenant_id": tenant_id})).rowcount
