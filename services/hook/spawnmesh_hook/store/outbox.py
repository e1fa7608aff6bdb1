"""The outbox: published events, and a job for each observer that has not received its event."""

from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.jobs.job import ClaimedJob, NewJob
from spawnmesh_postgres.jobs.store import enqueue
from spawnmesh_postgres.statements import load_statements

from spawnmesh_hook.domain.plugins import HookKind

DELIVER_EVENT = "deliver_event"
"""The kind of the jobs. Statements name it too."""

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
class StoredEvent:
    """An event to deliver. `content` is the serialized ObservedEvent, empty after its delivery."""

    hook: HookKind
    session_id: str
    run_id: str
    content: bytes


async def enqueue_event(
    connection: Connection, tenant_id: str, published: PublishedEvent, plugins: Sequence[str]
) -> bool:
    """Store the event with a job for each plugin.

    Return False, changing nothing, for a known key.
    """
    event_key = published.event_key
    event = {
        "tenant_id": tenant_id,
        "event_key": event_key,
        "hook": published.hook.value,
        "session_id": published.session_id,
        "run_id": published.run_id,
        "event": published.event,
    }
    if await (await connection.execute(_SQL["insert_event"], event)).fetchone() is None:
        return False
    jobs = [
        NewJob(
            DELIVER_EVENT,
            f"{plugin} {event_key}",
            {"plugin": plugin, "event_key": event_key},
            published.traceparent,
        )
        for plugin in plugins
    ]
    await enqueue(connection, tenant_id, *jobs)
    return True


async def get_event(database: Database, tenant_id: str, event_key: str) -> StoredEvent:
    """Return the event. Raise NOT_FOUND if it is not visible yet, or not any more."""
    async with database.transaction(tenant_id) as connection:
        return await read_event(connection, tenant_id, event_key)


async def read_event(connection: Connection, tenant_id: str, event_key: str) -> StoredEvent:
    """Return the event, as `get_event` does."""
    values = {"tenant_id": tenant_id, "event_key": event_key}
    row = await (await connection.execute(_SQL["read_event"], values)).fetchone()
    if row is None:
        raise not_found("event", event_key)
    return StoredEvent(HookKind(row["hook"]), row["session_id"], row["run_id"], bytes(row["event"]))


async def hold_delivery(connection: Connection, job: ClaimedJob) -> None:
    """Keep the job until its plugin is resumed. Do nothing if the plugin is not paused."""
    values = {
        "tenant_id": job.tenant_id,
        "plugin": job.arguments["plugin"],
        "key": job.key,
        "claim_id": job.claim_id,
    }
    if await (await connection.execute(_SQL["lock_paused_plugin"], values)).fetchone() is not None:
        await connection.execute(_SQL["hold_delivery"], values)


async def release_held_deliveries(connection: Connection, tenant_id: str, name: str) -> None:
    """Make the jobs due that were held while the plugin was paused, and wake the workers."""
    await connection.execute(_SQL["release_held_deliveries"], {"tenant_id": tenant_id, "name": name})


async def delete_deliveries_of_plugin(connection: Connection, tenant_id: str, name: str) -> None:
    """Delete all jobs of the plugin, and clear events that have no other job."""
    cursor = await connection.execute(
        _SQL["delete_deliveries_of_plugin"], {"tenant_id": tenant_id, "name": name}
    )
    event_keys = [row["event_key"] for row in await cursor.fetchall()]
    if event_keys:
        await clear_delivered(connection, tenant_id, event_keys)


async def clear_delivered(connection: Connection, tenant_id: str, event_keys: Sequence[str]) -> None:
    """Clear the content of those of the events that have no job left.

    The transaction has deleted the jobs that it ends.
    """
    parameters = {"tenant_id": tenant_id, "event_keys": list(event_keys)}
    await connection.execute(_SQL["lock_events"], parameters)
    cursor = await connection.execute(_SQL["list_open_events"], parameters)
    still_open = {row["event_key"] for row in await cursor.fetchall()}
    delivered = [key for key in event_keys if key not in still_open]
    if delivered:
        await connection.execute(_SQL["clear_events"], {"tenant_id": tenant_id, "event_keys": delivered})
