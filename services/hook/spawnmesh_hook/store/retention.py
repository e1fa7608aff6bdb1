"""Deletes rows that are past their retention."""

from datetime import timedelta

from spawnmesh_postgres.database import ALL_TENANTS, Connection, Database
from spawnmesh_postgres.statements import load_statements

_SQL = load_statements(__name__)
TIMES = {
    "deliveries": "start_time",
    "decisions": "decide_time",
    "run_revisions": "change_time",
    "revision_keys": "change_time",
    "plugin_waits": "begin_time",
    "allowed_spawns": "allow_time",
    "observed_events": "publish_time",
    "webhook_deliveries": "queue_time",
}
"""The column with the age of a row, by table."""
_EVENTS = "observed_events"


async def list_tenants(database: Database, after_id: str, limit: int) -> list[str]:
    """Return a page of the ids of all tenants, after one of them."""
    async with database.pipelined(ALL_TENANTS) as connection:
        cursor = await connection.execute(_SQL["list_tenants"], {"after_id": after_id, "limit": limit})
    return [row["tenant_id"] for row in await cursor.fetchall()]


async def delete_old_rows(connection: Connection, tenant_id: str, retention: timedelta, limit: int) -> int:
    """Delete about `limit` rows of each table that are older than `retention`; return the count.

    The jobs of a deleted event are deleted with it, and do not count.
    """
    parameters = {"tenant_id": tenant_id, "retention": retention, "limit": limit}
    cursors = {table: await connection.execute(deletion_of(table), parameters) for table in TIMES}
    event_keys = [row["event_key"] for row in await cursors[_EVENTS].fetchall()]
    if event_keys:
        keys = {"tenant_id": tenant_id, "event_keys": event_keys}
        await connection.execute(_SQL["delete_deliveries_of_events"], keys)
    return sum(cursor.rowcount for cursor in cursors.values())


def deletion_of(table: str) -> str:
    """Return the statement that deletes the old rows of one of the TIMES."""
    statement = _SQL["delete_old"].replace("{table}", table).replace("{time}", TIMES[table])
    return statement.replace("{returning}", "returning event_key" if table == _EVENTS else "")
