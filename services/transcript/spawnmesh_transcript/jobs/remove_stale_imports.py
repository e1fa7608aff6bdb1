"""Delete imports that were abandoned."""

from spawnmesh_postgres.database import Database

from spawnmesh_transcript.operations.import_abort import abort_import
from spawnmesh_transcript.store import imports as import_store
from spawnmesh_transcript.store import tenants as tenant_store

_STALE_SECONDS = 86_400.0


async def remove_stale_imports(database: Database, tenant_id: str) -> None:
    """Delete the imports that did not advance for a day, and those whose deletion was cut off."""
    async with database.transaction(tenant_id) as connection:
        if not await tenant_store.enter_tenant(connection, tenant_id):
            return
        stale = await import_store.list_stale_imports(connection, tenant_id, age_seconds=_STALE_SECONDS)
    for key, incarnation in stale:
        await abort_import(database, key, incarnation, age_seconds=_STALE_SECONDS)
