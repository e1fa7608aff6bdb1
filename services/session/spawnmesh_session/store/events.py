"""Lifecycle events of sessions."""

from collections.abc import Sequence
from datetime import timedelta

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_session.domain.sessions import EventKind, SessionEvent
from spawnmesh_session.store.rows import PendingRow

_SQL = load_statements(__name__)

CHANNEL = "session_changed"
"""The channel of PostgreSQL on which each event is notified; the payload is `payload_of`. An event
after which the session may be done is notified with `done_payload_of`, too.
"""


def payload_of(tenant_id: str, session_id: str) -> str:
    """Return the payload of the notifications about a session, as the statements build it."""
    return f"{tenant_id}:{session_id}"


def done_payload_of(tenant_id: str, session_id: str) -> str:
    """Return the payload of the notifications that the session may be done."""
    return f"{tenant_id}:{session_id}:done"


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
    set_id: str = "",
) -> PendingRow[int]:
    """Append an event with the session's next number, and return the number, to be fetched later.

    Its watchers wake when the transaction commits.
    """
    values = {
        "tenant_id": tenant_id,
        "session_id": session_id,
        "kind": kind.value,
        "run_id": run_id,
        "run_state": run_state,
        "child_session_id": child_session_id,
        "detail": detail,
        "set_id": set_id,
    }
    appended = await connection.execute(_SQL["append_event"], values)
    await notify_watchers(connection, tenant_id, session_id)
    return PendingRow(appended, lambda row: int(row["number"]))


async def notify_watchers(
    connection: Connection, tenant_id: str, session_id: str, *, may_be_done: bool = True
) -> None:
    """Wake the session's watchers when the transaction commits, and the calls that wait until it is
    done if it may be.

    It is a statement of its own, since a notification in a write would be sent by the server that
    has the tenant's rows, and the service listens at one server.
    """
    values = {"tenant_id": tenant_id, "session_id": session_id}
    name = "notify_watchers_and_waiters" if may_be_done else "notify_watchers"
    await connection.execute(_SQL[name], values)


async def list_events(
    connection: Connection, tenant_id: str, session_id: str, after_number: int
) -> list[SessionEvent]:
    """Return at most 500 events with a higher number, in order."""
    values = {"tenant_id": tenant_id, "session_id": session_id, "after_number": after_number}
    rows = await (await connection.execute(_SQL["list_events"], values)).fetchall()
    return [SessionEvent(**{**row, "kind": EventKind(row["kind"])}) for row in rows]


async def delete_events(connection: Connection, tenant_id: str, session_ids: Sequence[str]) -> None:
    """Delete all events of the sessions."""
    values = {"tenant_id": tenant_id, "session_ids": list(session_ids)}
    await connection.execute(_SQL["delete_events"], values)


async def prune_events(connection: Connection, tenant_id: str, older_than: timedelta, limit: int) -> int:
    """Delete at most `limit` events that are older; return the number."""
    values = {"tenant_id": tenant_id, "older_than": older_than, "limit": limit}
    return (await connection.execute(_SQL["prune_events"], values)).rowcount
