"""The outbox: published events, and one entry for each observer that has not received its event."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from psycopg.rows import DictRow
from spawnmesh_postgres.database import Connection, switch_tenant
from spawnmesh_postgres.statements import load_statements

from spawnmesh_hook.domain.plugins import HookKind

OUTBOX_CHANNEL = "hook_outbox"

_SQL = load_statements(__name__)


@dataclass(frozen=True, slots=True)
class PublishedEvent:
    """An event to store. `event` is the serialized ObservedEvent."""

    event_key: str
    hook: HookKind
    session_id: str
    run_id: str
    event: bytes
    traceparent: str


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """An event to deliver to an observer. `attempt` counts this attempt too."""

    tenant_id: str
    event_key: str
    plugin: str
    attempt: int
    hook: HookKind
    event: bytes
    traceparent: str


async def enqueue_event(
    connection: Connection, tenant_id: str, published: PublishedEvent, plugins: Sequence[str]
) -> bool:
    """Store the event with an entry for each plugin.

    Return False, changing nothing, for a known key.
    """
    event = {
        "tenant_id": tenant_id,
        "event_key": published.event_key,
        "hook": published.hook.value,
        "session_id": published.session_id,
        "run_id": published.run_id,
        "event": published.event,
        "traceparent": published.traceparent,
    }
    if await (await connection.execute(_SQL["insert_event"], event)).fetchone() is None:
        return False
    entries = {"tenant_id": tenant_id, "event_key": published.event_key, "plugins": list(plugins)}
    await connection.execute(_SQL["insert_outbox_entries"], entries)
    return True


async def notify_outbox(connection: Connection) -> None:
    """Wake the workers when the transaction commits."""
    await connection.execute(_SQL["notify_outbox"], {"channel": OUTBOX_CHANNEL})


async def claim_due_entries(
    connection: Connection, lease: timedelta, limit: int, full_tenants: Sequence[str] = ()
) -> list[OutboxEntry]:
    """Claim at most `limit` due entries for the length of the lease, but none of the full tenants.

    Needs a transaction of every tenant, and leaves it in the scope of one of them: an event is read
    in the scope of its tenant. An entry whose event is not visible yet waits for its lease.
    """
    parameters = {"lease": lease, "limit": limit, "full_tenants": list(full_tenants)}
    cursor = await connection.execute(_SQL["claim_due_entries"], parameters)
    claimed = await cursor.fetchall()
    events: dict[tuple[str, str], DictRow] = {}
    for tenant_id in {row["tenant_id"] for row in claimed}:
        keys = [row["event_key"] for row in claimed if row["tenant_id"] == tenant_id]
        await switch_tenant(connection, tenant_id)
        read = await connection.execute(_SQL["read_events"], {"tenant_id": tenant_id, "event_keys": keys})
        events |= {(tenant_id, event["event_key"]): event for event in await read.fetchall()}
    return [
        _entry(row, event) for row in claimed if (event := events.get((row["tenant_id"], row["event_key"])))
    ]


async def seconds_to_next_entry(connection: Connection, full_tenants: Sequence[str]) -> float | None:
    """Return in how many seconds the next entry is due, of all tenants but the full ones.

    The number is negative for an entry that is due, and None if there is no entry. Needs a
    transaction of every tenant.
    """
    cursor = await connection.execute(_SQL["seconds_to_next_entry"], {"full_tenants": list(full_tenants)})
    row = await cursor.fetchone()
    return None if row is None else row["seconds"]


async def complete_entry(connection: Connection, entry: OutboxEntry) -> None:
    """Delete the entry, and clear the event's content if no other entry is pending."""
    await connection.execute(_SQL["delete_entry"], _key(entry))
    await _clear_delivered(connection, entry.tenant_id, [entry.event_key])


async def delay_entry(connection: Connection, entry: OutboxEntry, delay: timedelta) -> None:
    """Make the entry due again after the delay."""
    await connection.execute(_SQL["delay_entry"], {**_key(entry), "delay": delay})


async def hold_entry(connection: Connection, entry: OutboxEntry) -> bool:
    """Keep the entry until its plugin is resumed. Return False if the plugin is not paused."""
    if await (await connection.execute(_SQL["lock_paused_plugin"], _key(entry))).fetchone() is None:
        return False
    return (await connection.execute(_SQL["hold_entry"], _key(entry))).rowcount > 0


async def release_held_entries(connection: Connection, tenant_id: str, name: str) -> None:
    """Make the entries due that were held while the plugin was paused, and wake the workers."""
    await connection.execute(_SQL["release_held_entries"], {"tenant_id": tenant_id, "name": name})
    await notify_outbox(connection)


async def dead_letter_entry(connection: Connection, entry: OutboxEntry) -> None:
    """Mark the entry as dead, and clear the event's content if no other entry is pending."""
    await connection.execute(_SQL["dead_letter_entry"], _key(entry))
    await _clear_delivered(connection, entry.tenant_id, [entry.event_key])


async def delete_entries_of_plugin(connection: Connection, tenant_id: str, name: str) -> None:
    """Delete all entries of the plugin, and clear events that have no other pending entry."""
    cursor = await connection.execute(
        _SQL["delete_entries_of_plugin"], {"tenant_id": tenant_id, "name": name}
    )
    event_keys = [row["event_key"] for row in await cursor.fetchall()]
    if event_keys:
        await _clear_delivered(connection, tenant_id, event_keys)


async def _clear_delivered(connection: Connection, tenant_id: str, event_keys: Sequence[str]) -> None:
    """Clear the content of those of the events that have no pending entry left.

    The transaction has ended the entries that it ends.
    """
    parameters = {"tenant_id": tenant_id, "event_keys": list(event_keys)}
    await connection.execute(_SQL["lock_events"], parameters)
    cursor = await connection.execute(_SQL["list_open_events"], parameters)
    still_open = {row["event_key"] for row in await cursor.fetchall()}
    delivered = [key for key in event_keys if key not in still_open]
    if delivered:
        await connection.execute(_SQL["clear_events"], {"tenant_id": tenant_id, "event_keys": delivered})


def _entry(row: DictRow, event: DictRow) -> OutboxEntry:
    return OutboxEntry(
        tenant_id=row["tenant_id"],
        event_key=row["event_key"],
        plugin=row["plugin"],
        attempt=row["attempt_count"],
        hook=HookKind(event["hook"]),
        event=bytes(event["event"]),
        traceparent=event["traceparent"],
    )


def _key(entry: OutboxEntry) -> dict[str, str]:
    return {"tenant_id": entry.tenant_id, "event_key": entry.event_key, "plugin": entry.plugin}
