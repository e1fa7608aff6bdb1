"""Deletes a transcript: at once for all who read or write it, and then its rows, page by page."""

from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript import import_store, tenant_store
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.store import Key
from spawnmesh_transcript.tenants import PAGE_ROWS

_SQL = load_statements("spawnmesh_transcript")
_PAGES = (
    "delete_entries",
    "delete_appends",
    "delete_search_pieces",
    "delete_stubs",
    "delete_summaries",
    "delete_activities",
)


async def delete_transcript(database: Database, payloads: Payloads, key: Key) -> None:
    """The transcript is gone, and is never created again. A call that is cut off is gone on with by the next one.

    Raises MeshError where it had payloads, and the blob store is away: then they are still named, for the next call to release.
    """
    parameters = {"tenant_id": key.tenant_id, "session_id": key.session_id}
    async with database.transaction(key.tenant_id) as connection:
        if not await tenant_store.enter_tenant(connection, key.tenant_id):
            return  # All of the tenant is being removed.
        await connection.execute(_SQL["bury_transcript"], parameters)
        for statement in ("delete_import", "delete_search_progress"):
            await connection.execute(_SQL[statement], parameters)
    await payloads.release(key)
    await delete_pages(database, key)


async def delete_pages(database: Database, key: Key) -> None:
    """Removes whatever was written for a transcript that nobody reads or writes any more, but for its payloads."""
    for statement in _PAGES:
        gone = PAGE_ROWS
        while gone == PAGE_ROWS:
            async with database.transaction(key.tenant_id) as connection:
                gone = await _delete_page(connection, key, statement)


async def delete_import_pages(database: Database, key: Key, incarnation: str) -> None:
    """Removes whatever was written for an aborted import, whose payloads were not put; nothing of what came after it."""
    for statement in (*_PAGES, "delete_payload_rows"):
        gone = PAGE_ROWS
        while gone == PAGE_ROWS:
            async with database.transaction(key.tenant_id) as connection:
                if not await import_store.hold(connection, key, incarnation):
                    return
                gone = await _delete_page(connection, key, statement)


async def _delete_page(connection: Connection, key: Key, statement: str) -> int:
    parameters = {"tenant_id": key.tenant_id, "session_id": key.session_id, "row_count": PAGE_ROWS}
    await connection.execute(_SQL["keep_to_indexes"])
    return (await connection.execute(_SQL[statement], parameters)).rowcount
