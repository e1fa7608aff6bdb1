"""Sessions that are put away and deleted, and what is pruned by its age."""

from collections.abc import Sequence
from datetime import timedelta

from psycopg.rows import DictRow
from spawnmesh_postgres.database import Connection

from spawnmesh_session.store.statements import SQL


async def archive(connection: Connection, tenant_id: str, session_ids: Sequence[str]) -> int:
    """Puts those away that have ended; messages that wait count as read. Returns how many were put away now."""
    values = {"tenant_id": tenant_id, "session_ids": list(session_ids)}
    archived = await (await connection.execute(SQL["archive_sessions"], values)).fetchall()
    await connection.execute(SQL["close_inbox"], values)
    return len(archived)


async def delete(connection: Connection, tenant_id: str, session_ids: Sequence[str]) -> list[str]:
    """Deletes those that have ended: what is left of each is what remembers its request_id. Returns which were deleted now."""
    values = {"tenant_id": tenant_id, "session_ids": list(session_ids)}
    rows = await (await connection.execute(SQL["delete_sessions"], values)).fetchall()
    deleted = [row["session_id"] for row in rows]
    for statement in ("delete_runs", "delete_messages", "delete_events"):
        await connection.execute(SQL[statement], {"tenant_id": tenant_id, "session_ids": deleted})
    return deleted


async def find_deleted(connection: Connection, tenant_id: str, session_id: str) -> DictRow | None:
    """Whether a deleted session `may_have_files`; None for one that is not deleted, or forgotten."""
    values = {"tenant_id": tenant_id, "session_id": session_id}
    return await (await connection.execute(SQL["find_deleted"], values)).fetchone()


async def lock_even_deleted(connection: Connection, tenant_id: str, session_id: str) -> DictRow | None:
    """The session, deleted or not, locked until the transaction ends."""
    values = {"tenant_id": tenant_id, "session_id": session_id}
    return await (await connection.execute(SQL["lock_even_deleted"], values)).fetchone()


async def list_to_archive(connection: Connection, tenant_id: str, archive_after: timedelta, limit: int) -> list[str]:
    """Sessions that ended longer ago and are not archived, the oldest first."""
    values = {"tenant_id": tenant_id, "archive_after": archive_after, "limit": limit}
    return [row["session_id"] for row in await (await connection.execute(SQL["list_to_archive"], values)).fetchall()]


async def list_to_delete(connection: Connection, tenant_id: str, delete_after: timedelta, limit: int) -> list[str]:
    """Sessions that ended longer ago and have no children any more, the oldest first."""
    values = {"tenant_id": tenant_id, "delete_after": delete_after, "limit": limit}
    return [row["session_id"] for row in await (await connection.execute(SQL["list_to_delete"], values)).fetchall()]


async def prune(connection: Connection, tenant_id: str, statement: str, older_than: timedelta, limit: int) -> int:
    """Removes at most `limit` rows by `prune_events`, `prune_messages` or `forget_deleted`; returns how many."""
    values = {"tenant_id": tenant_id, "older_than": older_than, "limit": limit}
    return (await connection.execute(SQL[statement], values)).rowcount
