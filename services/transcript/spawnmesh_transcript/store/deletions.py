"""Deletion of one transcript: its tombstone, and its rows page by page."""

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.store.activities import lock_activities
from spawnmesh_transcript.store.rows import key_parameters

_SQL = load_statements(__name__)

PAGED_TABLES = ("entries", "appends", "search_pieces", "stubs", "summaries", "activities")
"""Tables whose rows of a transcript are deleted page by page, in this order."""


async def mark_deleted(connection: Connection, key: Key) -> None:
    """Turn the transcript's row into that of a deleted one, and delete its draft, its import and
    its search progress.
    """
    parameters = key_parameters(key)
    await connection.execute(_SQL["mark_deleted"], parameters)
    for statement in ("delete_draft", "delete_import", "delete_search_progress"):
        await connection.execute(_SQL[statement], parameters)


async def delete_rows(connection: Connection, key: Key, table: str, *, row_count: int) -> int:
    """Delete up to `row_count` rows of the transcript from a table, and return their number.

    `table` is one of PAGED_TABLES, or `payload_rows`: payloads that were never put.
    """
    parameters = key_parameters(key, row_count=row_count)
    async with connection.pipeline():
        if table == "activities":
            await lock_activities(connection, key.tenant_id)
        deleted = await connection.execute(_SQL[f"delete_{table}"], parameters)
    return deleted.rowcount
