"""The tables of the audit log."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import starmap
from typing import Any

from psycopg.rows import kwargs_row
from psycopg.types.json import Jsonb
from spawnmesh_core.audit_event import DENIED

from spawnmesh_postgres.audit.chain import FIELDS, ChainedEvent, Link, event_hash
from spawnmesh_postgres.bounded_pages import bounded_page, scanned_row
from spawnmesh_postgres.database import ALL_TENANTS, Connection, Database
from spawnmesh_postgres.statements import load_statements

MAX_SCANNED_EVENTS = 5_000
"""Events at which a page looks, so that its cost is bounded whatever the filter."""

_SQL = load_statements(__name__)

NO_TENANT = ALL_TENANTS
"""The tenant of events that have none. It is the scope in which they are written and read."""

_SNAPSHOT = "set transaction isolation level repeatable read"


@dataclass(frozen=True, slots=True)
class EventFilter:
    """The events to list. Texts that are empty, and an `outcome` that is, select all."""

    end_time: datetime
    method: str = ""
    outcome: str = ""
    trace_id: str = ""


@dataclass(frozen=True, slots=True)
class ListPosition:
    """The place of an event in a list, which is ordered by time."""

    event_time: datetime
    tenant_id: str = ""
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Events by time, each with its hash.

    The next page begins after `end`, which is None on the last page.
    """

    events: list[tuple[ChainedEvent, bytes]]
    end: ListPosition | None


@dataclass(frozen=True, slots=True)
class ChainState:
    """The ends of a chain, and what its tenant does not see."""

    tenant_id: str
    last_sequence: int
    last_hash: bytes
    hidden_sequence: int
    cut_sequence: int
    cut_hash: bytes

    @property
    def head(self) -> Link:
        """The last event."""
        return Link(self.last_sequence, self.last_hash)

    @property
    def cut(self) -> Link:
        """The last event that the retention removed."""
        return Link(self.cut_sequence, self.cut_hash)


async def add_events(
    database: Database, events: Sequence[ChainedEvent], *, is_repeat: bool
) -> list[tuple[ChainedEvent, bytes]]:
    """Add the events to the chains of their tenants, all or none, and return them as they are
    stored, with their `sequence`, each with its hash.

    `is_repeat` is for events that an earlier call may have added: those are not added again.
    """
    tenants = sorted({event.tenant_id for event in events})
    async with database.transaction(ALL_TENANTS) as connection:
        links = await _lock_chains(connection, tenants)
        if len(links) < len(tenants):
            await connection.execute(_SQL["add_chains"], {"tenants": tenants})
            links = await _lock_chains(connection, tenants)
        known = await _find_stored(connection, events) if is_repeat else []
        known_ids = {event.event_id for event, _ in known}
        added = list(_chained(links, [event for event in events if event.event_id not in known_ids]))
        await connection.execute(_SQL["add_events"], {"events": Jsonb(list(starmap(_row_of, added)))})
        ends = [
            {"tenant_id": tenant_id, "last_sequence": link.sequence, "last_hash": link.hash.hex()}
            for tenant_id, link in links.items()
        ]
        await connection.execute(_SQL["advance_chains"], {"ends": Jsonb(ends)})
    return known + added


async def _find_stored(
    connection: Connection, events: Sequence[ChainedEvent]
) -> list[tuple[ChainedEvent, bytes]]:
    async with connection.cursor(row_factory=kwargs_row(event_of)) as cursor:
        await cursor.execute(_SQL["find_stored_events"], {"ids": [event.event_id for event in events]})
        return await cursor.fetchall()


async def _lock_chains(connection: Connection, tenants: Sequence[str]) -> dict[str, Link]:
    cursor = await connection.execute(_SQL["lock_chains"], {"tenants": list(tenants)})
    return {row["tenant_id"]: Link(row["last_sequence"], row["last_hash"]) for row in await cursor.fetchall()}


def _chained(links: dict[str, Link], events: Iterable[ChainedEvent]) -> Iterator[tuple[ChainedEvent, bytes]]:
    """Yield the events in their places, each with its hash, and move the links."""
    for event in events:
        before = links[event.tenant_id]
        placed = replace(event, sequence=before.sequence + 1)
        digest = event_hash(before.hash, placed)
        links[event.tenant_id] = Link(placed.sequence, digest)
        yield placed, digest


def _row_of(event: ChainedEvent, digest: bytes) -> dict[str, Any]:
    return {
        **{name: getattr(event, name) for name in FIELDS},
        "event_time": event.event_time.isoformat(),
        "last_time": event.last_time.isoformat(),
        "hash": digest.hex(),
    }


async def list_events(
    database: Database,
    tenant_id: str,
    wanted: EventFilter,
    after: ListPosition,
    *,
    with_hidden: bool,
    page_size: int,
    scan_limit: int = MAX_SCANNED_EVENTS,
) -> AuditPage:
    """Return a page of events of a tenant or of all (ALL_TENANTS).

    The page has fewer events, or none, if few of the `scan_limit` at which it looks are wanted.
    """
    values = {
        **asdict(wanted),
        "denied": sorted(DENIED),
        "after_time": after.event_time,
        "after_tenant": after.tenant_id,
        "after_sequence": after.sequence,
        "tenant_id": tenant_id,
        "with_hidden": with_hidden,
        "scan_limit": scan_limit,
        "limit": page_size + 1,
    }
    name = "list_events" if tenant_id == ALL_TENANTS else "list_tenant_events"
    (rows,) = await database.transact(tenant_id, (_SQL[name], values))
    scanned = scanned_row(event_of)
    page, last = bounded_page([scanned(**row) for row in rows], page_size)
    return AuditPage(page, None if last is None else _position_of(last[0]))


def _position_of(event: ChainedEvent) -> ListPosition:
    return ListPosition(event.event_time, event.tenant_id, event.sequence)


async def read_chain(
    database: Database, scope: str, tenant_id: str, *, after: Link | None, limit: int
) -> tuple[ChainState, Link, list[tuple[ChainedEvent, bytes]]] | None:
    """Return the chain of the tenant with some of its events after `after`. Without `after`, return
    the next tenant's chain that the scope shows, from its beginning; None if there is none.

    The link is the place before the first of these events.
    """
    async with database.transaction(scope) as connection:
        await connection.execute(_SNAPSHOT)
        statement = _SQL["next_chain" if after is None else "get_chain"]
        cursor = await connection.execute(statement, {"tenant_id": tenant_id})
        row = await cursor.fetchone()
        if row is None:
            return None
        state = ChainState(**row)
        start = state.cut
        if after is not None and after.sequence > start.sequence:
            start = after
        return state, start, await read_events(connection, state, start, limit)


async def read_events(
    connection: Connection, state: ChainState, start: Link, limit: int
) -> list[tuple[ChainedEvent, bytes]]:
    """Return events of a chain after `start` in their order, each with its hash."""
    values = {
        "tenant_id": state.tenant_id,
        "after": start.sequence,
        "last": state.last_sequence,
        "limit": limit,
    }
    async with connection.cursor(row_factory=kwargs_row(event_of)) as cursor:
        await cursor.execute(_SQL["read_chain"], values)
        return await cursor.fetchall()


async def hide_events(connection: Connection, tenant_id: str) -> None:
    """Hide the events of an earlier tenant of this name from the clients of a new one."""
    await connection.execute(_SQL["hide_events"], {"tenant_id": tenant_id})


def event_of(**columns: Any) -> tuple[ChainedEvent, bytes]:
    """Return an event with its hash, from the columns of its row."""
    digest: bytes = columns.pop("hash")
    return ChainedEvent(**columns), digest
