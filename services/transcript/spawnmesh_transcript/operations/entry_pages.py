"""Read pages of entries."""

from dataclasses import dataclass, replace

from spawnmesh_postgres.database import Database

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.entries import EntryFilter, Head, PagePosition, StoredEntry
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.rehydration import rehydrate_entries
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import snapshots
from spawnmesh_transcript.store import transcripts as transcript_store

PAGE_MAX_BYTES = 4 * 1024 * 1024
"""Bodies in one page: a page of small entries stays far below the largest message."""


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Entries by seq, the transcript's head, and whether there are more entries."""

    entries: list[StoredEntry]
    head: Head
    has_more: bool


async def read_page(
    database: Database,
    blobs: BlobStore,
    key: Key,
    position: PagePosition,
    wanted: EntryFilter,
    *,
    page_size: int,
) -> EntryPage:
    """Return a page of complete entries. Raises NOT_FOUND, and what `rehydrate_entries` raises."""
    page = await read_stored_page(database, key, position, wanted, page_size=page_size)
    return replace(page, entries=await rehydrate_entries(database, blobs, key, page.entries))


async def read_stored_page(
    database: Database, key: Key, position: PagePosition, wanted: EntryFilter, *, page_size: int
) -> EntryPage:
    """Return a page of entries as they are stored. Raises NOT_FOUND.

    Externalized payloads are missing from the bodies.
    """
    async with database.transaction(key.tenant_id) as connection:
        await snapshots.begin_snapshot(connection)
        transcript = await transcript_store.get_transcript(connection, key)
        entries, has_more = await entry_store.list_entries(
            connection, key, position, wanted, page_size=page_size, max_bytes=PAGE_MAX_BYTES
        )
    return EntryPage(entries, transcript.head, has_more)
