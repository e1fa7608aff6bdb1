"""Abort an import and delete its rows."""

from spawnmesh_postgres.database import Database

from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.deletion import delete_import_pages
from spawnmesh_transcript.store import imports as import_store


async def abort_import(database: Database, key: Key, incarnation: str, *, age_seconds: float = 0) -> None:
    """Delete this import, unless it advanced within the last `age_seconds`.

    An import of the session with another incarnation stays. If the deletion is cut off, the next
    call for the session, or the worker, finishes it.
    """
    async with database.transaction(key.tenant_id) as connection:
        if not await import_store.lock_import(connection, key, incarnation):
            return
        if not await import_store.abort_import(connection, key, age_seconds=age_seconds):
            return
    await delete_import_pages(database, key, incarnation)
    async with database.transaction(key.tenant_id) as connection:
        if await import_store.lock_import(connection, key, incarnation):
            await import_store.delete_aborted_import(connection, key, incarnation)
