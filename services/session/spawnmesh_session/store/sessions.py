"""Sessions and their events."""

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from psycopg import AsyncCursor
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_session.domain import EventKind, Spawn, SpawnFailure
from spawnmesh_session.store.runs import NewRun
from spawnmesh_session.store.statements import SQL

_MAX_LIST_BYTES = 3 * 1024 * 1024  # An answer is less than the 4 MiB that gRPC takes by default.


async def _one(connection: Connection, statement: str, **values: Any) -> DictRow | None:
    return await (await connection.execute(SQL[statement], values)).fetchone()


async def insert(
    connection: Connection, tenant_id: str, spawn: Spawn, ancestor_ids: tuple[str, ...], *, due_in: timedelta
) -> AsyncCursor[DictRow]:
    """Inserts the session as PROVISIONING, to be spawned within `due_in`, with its first event; its parent, which is locked, has one more child.

    To be fetched later: no row where the request_id is known, and then nothing was done.
    """
    values = {**asdict(spawn), "tenant_id": tenant_id, "ancestor_ids": list(ancestor_ids), "due_in": due_in}
    return await connection.execute(SQL["insert_session"], values)


async def find_spawn(connection: Connection, tenant_id: str, spawn: Spawn) -> DictRow | None:
    """What became of the spawn of that request_id by the same spawner, `deleted` where its session was."""
    values = {"request_id": spawn.request_id, "spawner": spawn.spawner}
    return await _one(connection, "find_spawn", tenant_id=tenant_id, **values)


async def get(connection: Connection, tenant_id: str, session_id: str, *, visible_to: str = "") -> DictRow:
    """The session with its newest run, where it is `visible_to` or a descendant of it (empty: everyone's); NOT_FOUND otherwise."""
    return visible(
        await _one(connection, "get_session", tenant_id=tenant_id, session_id=session_id), session_id, visible_to
    )


async def look_at(database: Database, tenant_id: str, session_id: str, *, visible_to: str = "") -> DictRow:
    """As `get`, in one round trip, a transaction of its own."""
    rows = await database.call(tenant_id, SQL["look_at_session"], {"session_id": session_id})
    return visible(rows[0] if rows else None, session_id, visible_to)


def visible(row: DictRow | None, session_id: str, visible_to: str = "") -> DictRow:
    """The session, where it is `visible_to` or a descendant of it (empty: everyone's); NOT_FOUND otherwise."""
    if row is None or (visible_to and visible_to != session_id and visible_to not in row["ancestor_ids"]):
        raise not_found("session", session_id)
    return row


@dataclass(frozen=True, slots=True)
class ListedPage:
    """Sessions with their newest runs, newest first; and behind which id the next page begins, empty where there is none."""

    rows: list[DictRow]
    next_before_id: str


async def list_page(
    connection: Connection,
    tenant_id: str,
    *,
    parent_session_id: str,
    visible_to: str,
    before_id: str,
    page_size: int,
    include_archived: bool,
) -> ListedPage:
    """A page of the tenant's sessions, of a session's children, or of what is `visible_to` a session; fewer where results are large."""
    statement = "list_children" if parent_session_id else "list_descendants" if visible_to else "list_newest"
    asked = {
        "tenant_id": tenant_id,
        "parent_session_id": parent_session_id,
        "visible_to": visible_to,
        "before_id": before_id,
        "page_size": page_size + 1,
        "include_archived": include_archived,
    }
    found = [row["session_id"] for row in await (await connection.execute(SQL[statement], asked)).fetchall()]
    values = {"tenant_id": tenant_id, "session_ids": found[:page_size], "max_bytes": _MAX_LIST_BYTES}
    rows = await (await connection.execute(SQL["read_sessions"], values)).fetchall()
    if rows:
        return ListedPage(rows, next_before_id=rows[-1]["session_id"] if rows[-1]["session_id"] != found[-1] else "")
    return ListedPage([], next_before_id=found[page_size - 1] if len(found) > page_size else "")  # Deleted meanwhile.


async def lock(connection: Connection, tenant_id: str, session_id: str) -> DictRow:
    """The session, locked until the transaction ends; NOT_FOUND where there is none."""
    row = await _one(connection, "lock_session", tenant_id=tenant_id, session_id=session_id)
    if row is None:
        raise not_found("session", session_id)
    return row


async def pass_gate(database: Database, tenant_id: str, session_id: str) -> bool:
    """Records that the gate let the spawn pass, in a transaction of its own; False where it is no longer being spawned."""
    [row] = await database.call(tenant_id, SQL["pass_gate"], {"session_id": session_id})
    return bool(row["passed"])


async def enrol(
    database: Database,
    tenant_id: str,
    session_id: str,
    receipt: dict[str, Any] | None,
    run: NewRun,
    jobs: Jsonb,
) -> DictRow | None:
    """PROVISIONING -> ACTIVE with its first run in the queue, and the jobs due, in a transaction of its own.

    The session with its run; None where it is no longer being spawned.
    """
    values = {
        **asdict(run),
        "session_id": session_id,
        "receipt": Jsonb(receipt) if receipt else None,
        "jobs": jobs,
    }
    rows = await database.call(tenant_id, SQL["enrol_session"], values)
    return rows[0] if rows else None


async def fail_spawn(connection: Connection, tenant_id: str, session_id: str, failure: SpawnFailure) -> DictRow | None:
    """PROVISIONING -> SPAWN_FAILED; None where it is no longer being spawned."""
    return await _one(
        connection, "fail_spawn", tenant_id=tenant_id, session_id=session_id, failure=Jsonb(asdict(failure))
    )


async def close(connection: Connection, tenant_id: str, session_id: str) -> None:
    """ACTIVE -> CLOSED, with its event; nothing where it was not active."""
    await connection.execute(SQL["close_session"], {"tenant_id": tenant_id, "session_id": session_id})


async def reserve_epoch(connection: Connection, tenant_id: str, session_id: str) -> int:
    """An epoch that no run of the session has or gets, higher than any that was given out. Locks the session."""
    row = await _one(connection, "reserve_epoch", tenant_id=tenant_id, session_id=session_id)
    return int(row["last_epoch"]) if row else 0


async def lock_family(connection: Connection, tenant_id: str, session_id: str) -> list[DictRow]:
    """The session and its descendants, locked, parents first; id and state of each. None can be spawned beside them any more.

    A child may have come while the statement waited for its parent's lock, so it is repeated until it finds nobody new.
    """
    values = {"tenant_id": tenant_id, "session_id": session_id}
    known = -1
    family: list[DictRow] = []
    while len(family) > known:
        known = len(family)
        family = await (await connection.execute(SQL["lock_family"], values)).fetchall()
    return family


async def append_event(
    connection: Connection,
    tenant_id: str,
    session_id: str,
    kind: EventKind,
    *,
    run_id: str = "",
    run_state: str = "",
    child_session_id: str = "",
    detail: str = "",
) -> None:
    """Writes an event at the session's next cursor and wakes those who watch it when the transaction commits."""
    values = {
        "tenant_id": tenant_id,
        "session_id": session_id,
        "kind": kind.value,
        "run_id": run_id,
        "run_state": run_state,
        "child_session_id": child_session_id,
        "detail": detail,
    }
    await connection.execute(SQL["append_event"], values)


async def list_events(connection: Connection, tenant_id: str, session_id: str, after_cursor: int) -> list[DictRow]:
    """At most 500 events behind the cursor, in order."""
    values = {"tenant_id": tenant_id, "session_id": session_id, "after_cursor": after_cursor}
    return await (await connection.execute(SQL["list_events"], values)).fetchall()
