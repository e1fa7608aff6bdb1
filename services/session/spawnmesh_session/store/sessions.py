"""Sessions: reads, locks, and the ends of their lives. `store.spawns` begins them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.jobs import store as jobs
from spawnmesh_postgres.statements import load_statements

from spawnmesh_session.domain.job_kinds import EXPIRE_MODEL_CALL
from spawnmesh_session.domain.sessions import FamilyMember, Session, SessionState, require_access
from spawnmesh_session.store import approvals, budgets, events, inbox, output_sets, runs
from spawnmesh_session.store.rows import PendingRow, session_of

_SQL = load_statements(__name__)


async def get_session(
    database: Database, tenant_id: str, session_id: str, *, family_root: str = ""
) -> Session:
    """Return the session with its newest run, in a transaction of its own and one round trip.

    Raise NOT_FOUND if it is absent or outside the family of `family_root`, unless that is empty.
    """
    async with database.pipelined(tenant_id) as connection:
        found = await _send_read(connection, tenant_id, session_id)
    return require_access(await found.fetch(), session_id, family_root)


async def read_session(
    connection: Connection, tenant_id: str, session_id: str, *, family_root: str = ""
) -> Session:
    """Return the session as `get_session` does, inside the caller's transaction."""
    found = await _send_read(connection, tenant_id, session_id)
    return require_access(await found.fetch(), session_id, family_root)


async def _send_read(connection: Connection, tenant_id: str, session_id: str) -> PendingRow[Session]:
    values = {"tenant_id": tenant_id, "session_id": session_id}
    return PendingRow(await connection.execute(_SQL["read_session"], values), session_of)


async def lock_session(connection: Connection, tenant_id: str, session_id: str) -> Session:
    """Lock the session until the transaction ends. Raise NOT_FOUND if there is none."""
    values = {"tenant_id": tenant_id, "session_id": session_id}
    row = await (await connection.execute(_SQL["lock_session"], values)).fetchone()
    if row is None:
        raise not_found("session", session_id)
    return session_of(row)


async def lock_session_or_deleted(connection: Connection, tenant_id: str, session_id: str) -> Session | None:
    """Lock the session, deleted or not, until the transaction ends."""
    values = {"tenant_id": tenant_id, "session_id": session_id}
    row = await (await connection.execute(_SQL["lock_session_or_deleted"], values)).fetchone()
    return session_of(row) if row else None


async def lock_family(connection: Connection, tenant_id: str, session_id: str) -> list[FamilyMember]:
    """Lock the session and its descendants, parents first.

    None can be spawned among them from then on. A child may be inserted while the statement waits
    for its parent's lock, so the statement is repeated until it finds no new member.
    """
    values = {"tenant_id": tenant_id, "session_id": session_id}
    known_count = -1
    family: list[FamilyMember] = []
    while len(family) > known_count:
        known_count = len(family)
        rows = await (await connection.execute(_SQL["lock_family"], values)).fetchall()
        family = [FamilyMember(row["session_id"], SessionState(row["state"])) for row in rows]
    return family


async def lock_members(connection: Connection, tenant_id: str, session_ids: Sequence[str]) -> None:
    """Lock those sessions that are not deleted until the transaction ends, parents first."""
    values = {"tenant_id": tenant_id, "session_ids": list(session_ids)}
    await connection.execute(_SQL["lock_members"], values)


async def close_session(connection: Connection, tenant_id: str, session_id: str) -> None:
    """ACTIVE -> CLOSED, with its event. Do nothing if the session was not active."""
    values = {"tenant_id": tenant_id, "session_id": session_id}
    await connection.execute(_SQL["close_session"], values)
    await events.notify_watchers(connection, tenant_id, session_id)


async def reserve_epoch(connection: Connection, tenant_id: str, session_id: str) -> int:
    """Return an epoch above all epochs of the session's runs, which no run gets.

    Locks the session.
    """
    values = {"tenant_id": tenant_id, "session_id": session_id}
    row = await (await connection.execute(_SQL["reserve_epoch"], values)).fetchone()
    return int(row["last_epoch"]) if row else 0


async def archive_sessions(connection: Connection, tenant_id: str, session_ids: Sequence[str]) -> int:
    """Archive those sessions that have ended, and acknowledge their messages.

    Return the number of sessions that were archived now.
    """
    values = {"tenant_id": tenant_id, "session_ids": list(session_ids)}
    archived = await (await connection.execute(_SQL["archive_sessions"], values)).fetchall()
    await inbox.close_inbox(connection, tenant_id, session_ids)
    return len(archived)


async def delete_sessions(connection: Connection, tenant_id: str, session_ids: Sequence[str]) -> list[str]:
    """Delete those sessions that have ended, with their runs, messages, events, approvals and
    budgets.

    Only the rows that remember the request ids remain, and the ids of their output sets. Return the
    sessions that were deleted now.
    """
    values = {"tenant_id": tenant_id, "session_ids": list(session_ids)}
    rows = await (await connection.execute(_SQL["delete_sessions"], values)).fetchall()
    deleted = [row["session_id"] for row in rows]
    await runs.delete_runs(connection, tenant_id, deleted)
    await inbox.delete_messages(connection, tenant_id, deleted)
    await events.delete_events(connection, tenant_id, deleted)
    await approvals.delete_approvals(connection, tenant_id, deleted)
    await output_sets.blank_output_sets(connection, tenant_id, deleted)
    calls = await budgets.delete_budgets(connection, tenant_id, deleted)
    await jobs.delete(connection, tenant_id, EXPIRE_MODEL_CALL, *calls)
    return deleted


async def find_deleted_sessions(
    connection: Connection, tenant_id: str, session_ids: Sequence[str]
) -> dict[str, bool]:
    """Return, for each session that is deleted and not forgotten, whether it may have files."""
    values = {"tenant_id": tenant_id, "session_ids": list(session_ids)}
    rows = await (await connection.execute(_SQL["find_deleted_sessions"], values)).fetchall()
    return {row["session_id"]: row["may_have_files"] for row in rows}


async def list_sessions_to_archive(
    connection: Connection, tenant_id: str, archive_after: timedelta, limit: int
) -> list[str]:
    """Return and lock sessions that ended longer ago and are not archived, oldest first."""
    values = {"tenant_id": tenant_id, "archive_after": archive_after, "limit": limit}
    rows = await (await connection.execute(_SQL["list_sessions_to_archive"], values)).fetchall()
    return [row["session_id"] for row in rows]


Position = tuple[datetime | str, str]
FIRST_POSITION: Position = ("-infinity", "")


@dataclass(frozen=True, slots=True)
class DeletablePage:
    """A page of old sessions by end time: those `without_children`, and the next page."""

    without_children: list[str]
    next_position: Position | None


async def list_sessions_to_delete(
    connection: Connection, tenant_id: str, delete_after: timedelta, position: Position, limit: int
) -> DeletablePage:
    """Return and lock at most `limit` sessions that ended longer ago, from a position on."""
    after_time, after_id = position
    values = {
        "tenant_id": tenant_id,
        "delete_after": delete_after,
        "after_time": after_time,
        "after_id": after_id,
        "limit": limit,
    }
    rows = await (await connection.execute(_SQL["list_sessions_to_delete"], values)).fetchall()
    if not rows:
        return DeletablePage([], None)
    session_ids = [row["session_id"] for row in rows]
    asked = {"tenant_id": tenant_id, "session_ids": session_ids}
    found = await (await connection.execute(_SQL["list_parents"], asked)).fetchall()
    parents = {row["session_id"] for row in found}
    without_children = [session_id for session_id in session_ids if session_id not in parents]
    return DeletablePage(without_children, (rows[-1]["end_time"], session_ids[-1]))


async def forget_deleted_sessions(
    connection: Connection, tenant_id: str, older_than: timedelta, limit: int
) -> int:
    """Remove at most `limit` rows of sessions that were deleted longer ago; return the number."""
    values = {"tenant_id": tenant_id, "older_than": older_than, "limit": limit}
    return (await connection.execute(_SQL["forget_deleted_sessions"], values)).rowcount


async def list_live_roots(connection: Connection, tenant_id: str, limit: int) -> list[str]:
    """Return live sessions whose parents are not active."""
    values = {"tenant_id": tenant_id, "limit": limit}
    rows = await (await connection.execute(_SQL["list_live_roots"], values)).fetchall()
    return [row["session_id"] for row in rows]
