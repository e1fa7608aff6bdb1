"""Messages that wait for the next turn of a session."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta

from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.pipelines import Statement
from spawnmesh_postgres.statements import load_statements

from spawnmesh_session.domain.inbox import InboxMessage
from spawnmesh_session.domain.text import without_nul
from spawnmesh_session.store.rows import MAX_LIST_BYTES

_SQL = load_statements(__name__)
_MESSAGE_FIELDS = [field.name for field in fields(InboxMessage)]


@dataclass(frozen=True, slots=True)
class InboxPage:
    """Unread messages, and the position of the last one; None on the last page."""

    messages: list[InboxMessage]
    end_position: int | None


async def insert_message(
    connection: Connection,
    tenant_id: str,
    session_id: str,
    key: str,
    text: str,
    *,
    child_session_id: str = "",
    child_run_state: str = "",
    is_urgent: bool = False,
) -> bool:
    """Insert a message once for each key; return False if the key is known."""
    values = {
        "tenant_id": tenant_id,
        "session_id": session_id,
        "key": key,
        "text": without_nul(text),
        "child_session_id": child_session_id,
        "child_run_state": child_run_state,
        "is_urgent": is_urgent,
    }
    return await (await connection.execute(_SQL["insert_message"], values)).fetchone() is not None


async def get_message_text(connection: Connection, tenant_id: str, session_id: str, key: str) -> str | None:
    """Return the text of the message with this key, acknowledged or not."""
    values = {"tenant_id": tenant_id, "session_id": session_id, "key": key}
    row = await (await connection.execute(_SQL["get_message_text"], values)).fetchone()
    return str(row["text"]) if row else None


async def list_inbox(
    database: Database, tenant_id: str, session_id: str, run_id: str, *, after_position: int, page_size: int
) -> InboxPage:
    """Return a page of the unread messages for the run, oldest first, in a transaction of its own.

    Return fewer if their texts are large, but at least one. An interrupted run gets none.
    """
    values = {
        "tenant_id": tenant_id,
        "run_id": run_id,
        "session_id": session_id,
        "after_position": after_position,
        "row_count": page_size + 1,
        "max_bytes": MAX_LIST_BYTES,
    }
    async with database.pipelined(tenant_id) as connection:
        unread = await connection.execute(_SQL["list_inbox"], values)
    rows = await unread.fetchall()
    messages = [InboxMessage(**{name: row[name] for name in _MESSAGE_FIELDS}) for row in rows]
    has_more = bool(rows) and rows[-1]["found_count"] > len(rows)
    return InboxPage(messages, rows[-1]["position"] if has_more else None)


async def count_inbox(
    connection: Connection, tenant_id: str, session_id: str, *, arrived_after: datetime | None = None
) -> int:
    """Return the number of unread messages, or of those that arrived after a time."""
    statement = count_statement(tenant_id, session_id, arrived_after=arrived_after)
    row = await (await connection.execute(*statement)).fetchone()
    return int(row["unread"]) if row else 0


def count_statement(tenant_id: str, session_id: str, *, arrived_after: datetime | None = None) -> Statement:
    """Return the statement of `count_inbox`. Its row has the number as `unread`."""
    values = {"tenant_id": tenant_id, "session_id": session_id, "arrived_after": arrived_after}
    return _SQL["count_inbox"], values


async def measure_inbox(connection: Connection, tenant_id: str, session_id: str) -> tuple[int, int]:
    """Return the number and the bytes of the sent, unread messages.

    Children's results do not count.
    """
    values = {"tenant_id": tenant_id, "session_id": session_id}
    row = await (await connection.execute(_SQL["measure_inbox"], values)).fetchone()
    return (int(row["unread"]), int(row["size_bytes"])) if row else (0, 0)


async def acknowledge_inbox(connection: Connection, tenant_id: str, session_id: str, keys: list[str]) -> None:
    """Acknowledge messages. Those that are acknowledged stay as they are."""
    values = {"tenant_id": tenant_id, "session_id": session_id, "keys": keys}
    await connection.execute(_SQL["acknowledge_inbox"], values)


async def close_inbox(connection: Connection, tenant_id: str, session_ids: Sequence[str]) -> None:
    """Acknowledge the unread messages of sessions that have ended."""
    values = {"tenant_id": tenant_id, "session_ids": list(session_ids)}
    await connection.execute(_SQL["close_inbox"], values)


async def delete_messages(connection: Connection, tenant_id: str, session_ids: Sequence[str]) -> None:
    """Delete all messages of the sessions."""
    values = {"tenant_id": tenant_id, "session_ids": list(session_ids)}
    await connection.execute(_SQL["delete_messages"], values)


async def prune_messages(connection: Connection, tenant_id: str, older_than: timedelta, limit: int) -> int:
    """Delete at most `limit` messages that were acknowledged longer ago; return the number."""
    values = {"tenant_id": tenant_id, "older_than": older_than, "limit": limit}
    return (await connection.execute(_SQL["prune_messages"], values)).rowcount
