"""Delete old activities."""

from spawnmesh_postgres.database import Database

from spawnmesh_transcript.store import activities as activity_store

RETENTION_DAYS = 7

_PAGE_ROWS = 2_000


async def forget_activities(database: Database, tenant_id: str) -> int:
    """Delete the tenant's activities that are older than RETENTION_DAYS and return how many were
    deleted.
    """
    deleted = 0
    while True:
        async with database.transaction(tenant_id) as connection:
            page = await activity_store.forget_activities(
                connection, tenant_id, days=RETENTION_DAYS, row_count=_PAGE_ROWS
            )
        deleted += page
        if page < _PAGE_ROWS:
            return deleted
