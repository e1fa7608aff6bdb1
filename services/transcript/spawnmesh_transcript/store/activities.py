"""Activities: what the service did with transcripts, by position, for `WatchActivities`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg.rows import args_row
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.store.tenants import join_writers_statement

_SQL = load_statements(__name__)


@dataclass(frozen=True, slots=True)
class RecordedActivity:
    """A recorded activity. `body` is an `Activity` message without position, session and time."""

    position: int
    session_id: str
    create_time: datetime
    body: bytes


async def record_activities(database: Database, tenant_id: str, rows: Sequence[tuple[str, bytes]]) -> bool:
    """Record activities, each a session id and a serialized message, in a transaction of its own.

    Return whether any was recorded: activities of sessions without a transcript are skipped.
    """
    parameters = {
        "tenant_id": tenant_id,
        "session_ids": [session_id for session_id, _ in rows],
        "activities": [body for _, body in rows],
    }
    *_, recorded = await database.transact(
        tenant_id,
        join_writers_statement(tenant_id),
        (_SQL["lock_activities"], {"tenant_id": tenant_id}),
        (_SQL["record_activities"], parameters),
    )
    return bool(recorded)


async def lock_activities(connection: Connection, tenant_id: str) -> None:
    """Wait for every recorder of the tenant, and keep new ones out until the transaction ends."""
    await connection.execute(_SQL["lock_activities"], {"tenant_id": tenant_id})


async def read_newest_position(connection: Connection, tenant_id: str) -> int:
    """Return the position of the tenant's newest activity, 0 if it has none."""
    row = await (await connection.execute(_SQL["read_newest_position"], {"tenant_id": tenant_id})).fetchone()
    return int(row["position"]) if row else 0


async def list_activities(
    connection: Connection, key: Key, *, after_position: int, row_count: int
) -> list[RecordedActivity]:
    """Return a page of activities, oldest first.

    They are of one session, or of the tenant if `key` names none.
    """
    parameters = {
        "tenant_id": key.tenant_id,
        "session_id": key.session_id,
        "after_position": after_position,
        "row_count": row_count,
    }
    statement = "list_session_activities" if key.session_id else "list_activities"
    async with connection.cursor(binary=True, row_factory=args_row(RecordedActivity)) as cursor:
        await cursor.execute(_SQL[statement], parameters)
        return await cursor.fetchall()


async def forget_activities(connection: Connection, tenant_id: str, *, days: int, row_count: int) -> int:
    """Delete up to `row_count` activities older than `days`, and return their number."""
    parameters = {"tenant_id": tenant_id, "days": days, "row_count": row_count}
    return (await connection.execute(_SQL["forget_activities"], parameters)).rowcount
