"""Verify a transcript: read it in pages, and check each entry against the hash chain."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from google.protobuf.message import DecodeError
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.entries import Head
from spawnmesh_transcript.domain.prompt_window import Fence
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.verification import (
    ChainEntry,
    Mismatch,
    MismatchCause,
    end_mismatch,
    is_next,
    link_mismatch,
    start_mismatch,
)
from spawnmesh_transcript.operations.bulk_threads import BulkThreads
from spawnmesh_transcript.operations.entry_pages import PAGE_MAX_BYTES
from spawnmesh_transcript.operations.rehydration import StoredBody, rehydrate_bodies
from spawnmesh_transcript.operations.verification.columns import has_columns_of_body, labelled_entry_id
from spawnmesh_transcript.store import imports as import_store
from spawnmesh_transcript.store import snapshots
from spawnmesh_transcript.store import transcripts as transcript_store
from spawnmesh_transcript.store import verification as verification_store

PAGE_ROWS = 500
_INLINE_BYTES = 32 * 1024  # A smaller page is checked faster than a thread starts.


@dataclass(frozen=True, slots=True)
class Verified:
    """Everything up to the fence is intact; `is_complete` if that is the head of the first page."""

    fence: Fence
    is_complete: bool
    entry_count: int
    """Entries that are new since the previous page, or since the start."""
    size_bytes: int
    """Bytes of the bodies that were read for this page."""


@dataclass(frozen=True, slots=True)
class _ChainPage:
    """Entries of one snapshot, the hash before them, the head, and whether there are more."""

    entries: list[ChainEntry]
    before_hash: bytes
    head: Head
    has_more: bool


async def verify_transcript(
    database: Database,
    blobs: BlobStore,
    threads: BulkThreads,
    key: Key,
    start: Fence | None,
    *,
    page_rows: int = PAGE_ROWS,
) -> AsyncGenerator[Verified | Mismatch, None]:
    """Yield what is verified after each page; the last item is complete, or the first mismatch.

    Entries before `start` are not read. Raises NOT_FOUND, DEPENDENCY_UNAVAILABLE if the blob
    store is needed and unavailable, and POOL_EXHAUSTED if too much waits for a thread.
    """
    first_seq, known_seq = (start.seq, start.seq) if start else (1, 0)
    page = await _read_page(database, key, first_seq, page_rows + bool(start))
    head = page.head
    if start and (mismatch := start_mismatch(start, head, page.entries)):
        yield mismatch
        return
    reached = Fence(head.incarnation, first_seq - 1, page.before_hash)
    while True:
        entries = [entry for entry in page.entries if entry.seq <= head.seq]
        checked = await _check(database, blobs, threads, key, head, reached, entries)
        if isinstance(checked, Mismatch):
            yield checked
            return
        reached = checked
        is_complete = len(entries) < len(page.entries) or not page.has_more
        if is_complete and (mismatch := end_mismatch(reached, head) or _behind_head(page)):
            yield mismatch
            return
        size_bytes = sum(len(entry.body) + entry.dropped_bytes for entry in entries)
        yield Verified(reached, is_complete, reached.seq - known_seq, size_bytes)
        if is_complete:
            return
        known_seq = reached.seq
        page = await _read_page(database, key, reached.seq + 1, page_rows)


async def _read_page(database: Database, key: Key, first_seq: int, page_rows: int) -> _ChainPage:
    async with database.transaction(key.tenant_id) as connection:
        await snapshots.begin_snapshot(connection)
        transcript = await transcript_store.get_transcript(connection, key)
        before_hash = await verification_store.read_chain_hash(connection, key, first_seq - 1)
        entries, has_more = await verification_store.list_chain_entries(
            connection, key, first_seq=first_seq, page_size=page_rows, max_bytes=PAGE_MAX_BYTES
        )
    return _ChainPage(entries, before_hash, transcript.head, has_more)


def _behind_head(page: _ChainPage) -> Mismatch | None:
    """Return the first entry that no append has written: it is behind the head of its snapshot."""
    behind = (entry for entry in page.entries if entry.seq > page.head.seq)
    return next((Mismatch(entry.seq, entry.entry_id, MismatchCause.HEAD) for entry in behind), None)


async def _check(
    database: Database,
    blobs: BlobStore,
    threads: BulkThreads,
    key: Key,
    head: Head,
    reached: Fence,
    entries: Sequence[ChainEntry],
) -> Fence | Mismatch:
    """Return the position behind the entries, or the first mismatch."""
    complete = await _complete_until_lost(database, blobs, key, entries)
    if sum(len(entry.body) for entry in complete) > _INLINE_BYTES:
        reached, intact_count = await threads.run(
            key.tenant_id, partial(_intact, key, head, reached, complete)
        )
    else:
        reached, intact_count = _intact(key, head, reached, complete)
    intact = complete[:intact_count]
    if mislabelled := await _first_mislabelled(database, key, intact):
        return mislabelled
    if intact_count < len(complete):
        return await _cause(database, key, reached, complete[intact_count])
    if len(complete) < len(entries):
        lost = entries[len(complete)]
        if lost.seq != reached.seq + 1:
            return link_mismatch(reached, lost, None)
        return Mismatch(lost.seq, lost.entry_id, MismatchCause.PAYLOAD)
    return reached


async def _complete_until_lost(
    database: Database, blobs: BlobStore, key: Key, entries: Sequence[ChainEntry]
) -> list[ChainEntry]:
    """Return the entries with complete bodies, up to the first that cannot be completed."""
    externalized = [
        StoredBody(entry.seq, entry.body, entry.dropped_bytes) for entry in entries if entry.dropped_bytes
    ]
    bodies = dict(await _rehydrated(database, blobs, key, externalized) or {})
    for one in externalized if not bodies else ():  # One by one, to find the first that is lost.
        bodies |= await _rehydrated(database, blobs, key, [one]) or {}
        if one.seq not in bodies:
            break
    complete: list[ChainEntry] = []
    for entry in entries:
        if entry.dropped_bytes:
            if entry.seq not in bodies:
                break
            entry = entry._replace(body=bodies[entry.seq], dropped_bytes=0)
        complete.append(entry)
    return complete


async def _rehydrated(
    database: Database, blobs: BlobStore, key: Key, stored: Sequence[StoredBody]
) -> Mapping[int, bytes] | None:
    """Return the complete bodies by seq; None if one of them cannot be completed."""
    try:
        return await rehydrate_bodies(database, blobs, key, stored)
    except (DecodeError, ValueError):  # The body has no place for its payload.
        return None
    except MeshError as error:
        if refused_with(error, Reason.STORED_HASH_DIFFERS):
            return None
        raise


def _intact(key: Key, head: Head, reached: Fence, entries: Sequence[ChainEntry]) -> tuple[Fence, int]:
    """Return the position behind the first entries that are intact, and how many these are."""
    for count, entry in enumerate(entries):
        if not (is_next(reached, entry) and has_columns_of_body(key, head, entry)):
            return reached, count
        reached = Fence(reached.incarnation, entry.seq, entry.chain_hash)
    return reached, len(entries)


async def _cause(database: Database, key: Key, reached: Fence, entry: ChainEntry) -> Mismatch:
    """Say what is wrong with the first entry that is not intact."""
    if is_next(reached, entry):
        return Mismatch(entry.seq, entry.entry_id, MismatchCause.METADATA)
    seqs = await _find_seqs(database, key, [entry.parent_entry_id])
    return link_mismatch(reached, entry, seqs.get(entry.parent_entry_id))


async def _first_mislabelled(database: Database, key: Key, entries: Sequence[ChainEntry]) -> Mismatch | None:
    """Return the first label whose column names another entry than its body."""
    targets = [(entry, target) for entry in entries if (target := labelled_entry_id(entry))]
    seqs = await _find_seqs(database, key, [target for _, target in targets]) if targets else {}
    for entry, target in targets:
        if seqs.get(target) != entry.target_seq:
            return Mismatch(entry.seq, entry.entry_id, MismatchCause.METADATA)
    return None


async def _find_seqs(database: Database, key: Key, entry_ids: Sequence[str]) -> dict[str, int]:
    async with database.transaction(key.tenant_id) as connection:
        return await import_store.find_entry_seqs(connection, key, entry_ids)
