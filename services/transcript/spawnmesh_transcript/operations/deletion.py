"""Delete what was written for a transcript, page by page."""

from spawnmesh_postgres.database import Database

from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.store import deletions as deletion_store
from spawnmesh_transcript.store import imports as import_store

PAGE_ROWS = 2_000
"""Rows deleted in one transaction, so that no row stays locked for long."""


async def delete_pages(database: Database, key: Key) -> None:
    """Delete all rows of a deleted transcript except its payloads."""
    for table in deletion_store.PAGED_TABLES:
        deleted = PAGE_ROWS
        while deleted == PAGE_ROWS:
            async with database.transaction(key.tenant_id) as connection:
                deleted = await deletion_store.delete_rows(connection, key, table, row_count=PAGE_ROWS)


async def delete_import_pages(database: Database, key: Key, incarnation: str) -> None:
    """Delete all rows of an aborted import, whose payloads were not put yet.

    Stops if the session has another import or transcript by now: its rows stay.
    """
    for table in (*deletion_store.PAGED_TABLES, "payload_rows"):
        deleted = PAGE_ROWS
        while deleted == PAGE_ROWS:
            async with database.transaction(key.tenant_id) as connection:
                if not await import_store.lock_import(connection, key, incarnation):
                    return
                deleted = await deletion_store.delete_rows(connection, key, table, row_count=PAGE_ROWS)
