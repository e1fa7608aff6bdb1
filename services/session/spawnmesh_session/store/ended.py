"""Sessions that are put away and deleted, and what is pruned by its age."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

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


async def lock_members(connection: Connection, tenant_id: str, session_ids: Sequence[str]) -> None:
    """Locks those that are not deleted until the transaction ends, parents first."""
    await connection.execute(SQL["lock_members"], {"tenant_id": tenant_id, "session_ids": list(session_ids)})


async def find_deleted(connection: Connection, tenant_id: str, session_ids: Sequence[str]) -> dict[str, bool]:
    """Whether each of those that are deleted, and not forgotten, may have files."""
    values = {"tenant_id": tenant_id, "session_ids": list(session_ids)}
    rows = await (await connection.execute(SQL["find_deleted"], values)).fetchall()
    return {row["session_id"]: row["may_have_files"] for row in rows}


async def lock_even_deleted(connection: Connection, tenant_id: str, session_id: str) -> DictRow | None:
    """The session, deleted or not, locked until the transaction ends."""
    values = {"tenant_id": tenant_id, "session_id": session_id}
    return await (await connection.execute(SQL["lock_even_deleted"], values)).fetchone()


async def list_to_archive(connection: Connection, tenant_id: str, archive_after: timedelta, limit: int) -> list[str]:
    """Sessions that ended longer ago and are not archived, the oldest first."""
    values = {"tenant_id": tenant_id, "archive_after": archive_after, "limit": limit}
    return [row["session_id"] for row in await (await connection.execute(SQL["list_to_archive"], values)).fetchall()]


@dataclass(frozen=True, slots=True)
class DuePage:
    """Of sessions that ended long enough ago, in the order of their ends: those `without_children`; and where the next page begins, if any."""

    without_children: list[str]
    next_place: tuple[datetime | str, str] | None


FIRST_PLACE = ("-infinity", "")


async def list_to_delete(
    connection: Connection, tenant_id: str, delete_after: timedelta, place: tuple[datetime | str, str], limit: int
) -> DuePage:
    """A page of at most `limit` sessions that ended longer ago, from a place on; all of it is locked."""
    after_time, after_id = place
    values = {
        "tenant_id": tenant_id,
        "delete_after": delete_after,
        "after_time": after_time,
        "after_id": after_id,
        "limit": limit,
    }
    rows = await (await connection.execute(SQL["list_to_delete"], values)).fetchall()
    if not rows:
        return DuePage([], None)
    session_ids = [row["session_id"] for row in rows]
    asked = {"tenant_id": tenant_id, "session_ids": session_ids}
    found = await (await connection.execute(SQL["list_parents"], asked)).fetchall()
    parents = {row["parent_session_id"] for row in found}
    without_children = [session_id for session_id in session_ids if session_id not in parents]
    return DuePage(without_children, (rows[-1]["end_time"], session_ids[-1]))


async def prune(connection: Connection, tenant_id: str, statement: str, older_than: timedelta, limit: int) -> int:
    """Removes at most `limit` rows by `prune_events`, `prune_messages` or `forget_deleted`; returns how many."""
    values = {"tenant_id": tenant_id, "older_than": older_than, "limit": limit}
    row = await (await connection.execute(SQL[statement], values)).fetchone()
    return int(row["row_count"]) if row else 0
