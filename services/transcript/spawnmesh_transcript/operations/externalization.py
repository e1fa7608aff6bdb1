"""Drop inline copies of uploaded payloads, after a check that the entry can be rebuilt byte for
byte.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import psycopg
from psycopg_pool import PoolTimeout
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.entries import StoredEntry
from spawnmesh_transcript.domain.stale_results import TailLimits
from spawnmesh_transcript.domain.transcripts import Key, Transcript
from spawnmesh_transcript.operations.bodies.payload_blocks import with_payloads, without_payloads
from spawnmesh_transcript.operations.stale_scan import scan_newest_stale
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import tier as tier_store
from spawnmesh_transcript.store.tier import InlineEntry, PayloadLocation, ShorterBody

BATCH_ENTRIES = 16
BATCH_BYTES = 4 * 1024 * 1024
"""Limits of what is in memory and of one transaction; a single entry may be larger."""

_TAIL = TailLimits()
_TAIL_ROWS = 128


@dataclass(slots=True)
class DroppedCopies:
    """The entries that got shorter and by how many bytes together, and the failures by seq.

    An entry with a failure is unchanged.
    """

    entry_count: int = 0
    size_bytes: int = 0
    failures: dict[int, Reason] = field(default_factory=dict)


async def find_stale_seq(connection: Connection, key: Key, transcript: Transcript) -> int:
    """Return the newest seq that is no longer fresh for contexts with the default tail, 0 if all is
    fresh.


    """
    return await scan_newest_stale(connection, key, transcript, _TAIL, after_seq=0, row_count=_TAIL_ROWS)


async def drop_inline_copies(
    database: Database, blobs: BlobStore, key: Key, entries: Sequence[InlineEntry]
) -> DroppedCopies:
    """Drop the inline copies of the entries.

    Entries that another call changed meanwhile are skipped.
    """
    total = DroppedCopies()
    for batch in batches(entries):
        seqs = [entry.seq for entry in batch]
        try:
            await _drop_batch(database, blobs, key, seqs, total)
        except (psycopg.Error, PoolTimeout):
            total.failures |= dict.fromkeys(seqs, Reason.DEPENDENCY_UNAVAILABLE)
    return total


def batches(entries: Sequence[InlineEntry]) -> Iterator[list[InlineEntry]]:
    """Split the entries, in order, into batches of bounded size."""
    batch: list[InlineEntry] = []
    size_bytes = 0
    for entry in entries:
        if batch and (len(batch) >= BATCH_ENTRIES or size_bytes + entry.size_bytes > BATCH_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append(entry)
        size_bytes += entry.size_bytes
    if batch:
        yield batch


async def _drop_batch(
    database: Database, blobs: BlobStore, key: Key, seqs: Sequence[int], total: DroppedCopies
) -> None:
    async with database.transaction(key.tenant_id) as connection:
        entries = await entry_store.read_entries(connection, key, seqs)
        kept = await tier_store.list_payloads(connection, key, seqs)
    ready = [
        entry
        for entry in entries
        if not entry.dropped_bytes and entry.seq in kept and all(file.is_stored for file in kept[entry.seq])
    ]
    bodies = await asyncio.gather(*(_shorten(blobs, key, entry, kept[entry.seq]) for entry in ready))
    total.failures |= {
        entry.seq: body
        for entry, body in zip(ready, bodies, strict=True)
        if not isinstance(body, ShorterBody)
    }
    shorter = [body for body in bodies if isinstance(body, ShorterBody)]
    if shorter:
        dropped = await tier_store.drop_inline_payloads(database, key, shorter)
        total.entry_count += len(dropped)
        total.size_bytes += sum(dropped.values())


async def _shorten(
    blobs: BlobStore, key: Key, entry: StoredEntry, files: Sequence[PayloadLocation]
) -> ShorterBody | Reason:
    """Return the body without its payloads, or the reason why it could not be rebuilt from the blob
    store.
    """
    try:
        fetched = {
            file.block_index: await blobs.fetch(key.tenant_id, file.blob_id, sha256=file.sha256)
            for file in files
        }
        body = await asyncio.to_thread(_checked_body, entry.body, fetched)
    except MeshError as error:
        return error.reason
    except ValueError:  # There is no such block.
        return Reason.STORED_HASH_DIFFERS
    if body is None:
        return Reason.STORED_HASH_DIFFERS
    return ShorterBody(entry.seq, len(entry.body), [file.blob_id for file in files], body)


def _checked_body(body: bytes, payloads: Mapping[int, bytes]) -> bytes | None:
    """Return the body without the payloads, None if the payloads do not restore it."""
    shorter = without_payloads(body, payloads)
    return shorter if with_payloads(shorter, payloads) == body else None
