"""Deletes the rows of all tenants that are past their retention."""

from datetime import timedelta

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

_SQL = load_statements(__name__)
_TABLES = (
    "deliveries",
    "decisions",
    "run_revisions",
    "revision_keys",
    "plugin_waits",
    "allowed_spawns",
    "observed_events",
)


async def delete_old_rows(connection: Connection, retention: timedelta, limit: int) -> int:
    """Delete at most `limit` rows of each table that are older than `retention`; return the count.

    Needs a transaction of every tenant.
    """
    parameters = {"retention": retention, "limit": limit}
    deleted = 0
    for table in _TABLES:
        cursor = await connection.execute(_SQL[f"delete_old_{table}"], parameters)
        deleted += cursor.rowcount
    return deleted
