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

MAX_SCANNED_ENTRIES = 5_000
"""Entries at which a page looks, so that its cost is bounded whatever the filter."""


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Entries by seq, the transcript's head, and whether the transcript goes on behind `read_seq`.

    The page has fewer entries, or none, if few of those at which it looks are wanted.
    """

    entries: list[StoredEntry]
    head: Head
    has_more: bool
    read_seq: int


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
        head = (await transcript_store.get_transcript(connection, key)).head
        read_seq = position.end_seq(head.seq, MAX_SCANNED_ENTRIES)
        entries, is_cut = await entry_store.list_entries(
            connection,
            key,
            position,
            wanted,
            end_seq=read_seq,
            page_size=page_size,
            max_bytes=PAGE_MAX_BYTES,
        )
    if is_cut:
        read_seq = entries[0 if position.is_backwards else -1].seq
    return EntryPage(entries, head, position.goes_on_behind(read_seq, head.seq), read_seq)
