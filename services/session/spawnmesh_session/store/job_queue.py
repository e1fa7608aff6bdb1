"""The tables of the job library, for which it has no API."""

from datetime import timedelta

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

_SQL = load_statements(__name__)


async def revive_jobs(connection: Connection, silent_for: timedelta) -> int:
    """Requeue the jobs of workers that were silent for that long; return their number."""
    return (await connection.execute(_SQL["revive_jobs"], {"silent_for": silent_for})).rowcount


async def drop_waiting_jobs(connection: Connection, tenant_id: str) -> None:
    """Drop the tenant's jobs that no worker has."""
    await connection.execute(_SQL["drop_waiting_jobs"], {"tenant_id": tenant_id})


async def count_working_jobs(connection: Connection, tenant_id: str) -> int:
    """Return the number of the tenant's jobs that workers have."""
    row = await (await connection.execute(_SQL["count_working_jobs"], {"tenant_id": tenant_id})).fetchone()
    return int(row["working"]) if row else 0
