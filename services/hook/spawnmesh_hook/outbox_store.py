"""The outbox: events as they were published, and who is still to be told of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_hook.domain.plugins import HookKind

OUTBOX_CHANNEL = "hook_outbox"

_SQL = load_statements("spawnmesh_hook")


@dataclass(frozen=True, slots=True)
class Published:
    """An event to keep; `event` is the message's bytes."""

    event_key: str
    hook: HookKind
    session_id: str
    run_id: str
    event: bytes
    traceparent: str


@dataclass(frozen=True, slots=True)
class Telling:
    """One observer to be told of one event; `attempt` counts this try too."""

    tenant_id: str
    event_key: str
    plugin: str
    attempt: int
    hook: HookKind
    event: bytes
    traceparent: str


async def add_event(connection: Connection, tenant_id: str, published: Published, plugins: Sequence[str]) -> bool:
    """Keeps the event for these plugins; False, changing nothing, for a known key."""
    row = {
        "tenant_id": tenant_id,
        "event_key": published.event_key,
        "hook": published.hook.value,
        "session_id": published.session_id,
        "run_id": published.run_id,
        "event": published.event,
        "traceparent": published.traceparent,
    }
    cursor = await connection.execute(_SQL["add_event"], row)
    if await cursor.fetchone() is None:
        return False
    tellings = {"tenant_id": tenant_id, "event_key": published.event_key, "plugins": list(plugins)}
    await connection.execute(_SQL["add_tellings"], tellings)
    return True


async def announce_outbox(connection: Connection) -> None:
    """Wakes the workers when the transaction commits."""
    await connection.execute(_SQL["announce_outbox"], {"channel": OUTBOX_CHANNEL})


async def take_due(connection: Connection, held_for: timedelta, limit: int, full: Sequence[str] = ()) -> list[Telling]:
    """In the scope of every tenant: what is due, held for this worker for so long; nothing of tenants that are full."""
    parameters = {"held_for": held_for, "limit": limit, "full": list(full)}
    cursor = await connection.execute(_SQL["take_due_tellings"], parameters)
    return [
        Telling(
            tenant_id=row["tenant_id"],
            event_key=row["event_key"],
            plugin=row["plugin"],
            attempt=row["attempt_count"],
            hook=HookKind(row["hook"]),
            event=bytes(row["event"]),
            traceparent=row["traceparent"],
        )
        for row in await cursor.fetchall()
    ]


async def seconds_to_next(connection: Connection, full: Sequence[str]) -> float | None:
    """In the scope of every tenant that is not full: when the next telling is due, negative for one that is; None when there is none."""
    row = await (await connection.execute(_SQL["seconds_to_next_telling"], {"full": list(full)})).fetchone()
    return None if row is None else row["seconds"]


async def told(connection: Connection, telling: Telling) -> None:
    """It has heard. What the event says is kept no longer than until all have."""
    await connection.execute(_SQL["told"], _key(telling))
    await connection.execute(_SQL["empty_event"], _key(telling))


async def tell_again(connection: Connection, telling: Telling, pause: timedelta) -> None:
    """It is to be told again after the pause."""
    await connection.execute(_SQL["tell_again"], {**_key(telling), "pause": pause})


async def bury(connection: Connection, telling: Telling) -> None:
    """It is given up, and what the event says is kept for the others alone."""
    await connection.execute(_SQL["bury"], _key(telling))
    await connection.execute(_SQL["empty_event"], _key(telling))


def _key(telling: Telling) -> dict[str, str]:
    return {"tenant_id": telling.tenant_id, "event_key": telling.event_key, "plugin": telling.plugin}
