"""Rehydrate entries whose payloads are externalized: fetch the payloads and rebuild the bodies.

Every reader of bodies reads them through this module.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.task_group import run_concurrently
from spawnmesh_postgres.database import Database

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.entries import StoredEntry
from spawnmesh_transcript.domain.refusals import stored_hash_differs
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.bodies.payload_blocks import with_payloads
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import tier as tier_store
from spawnmesh_transcript.store.tier import PayloadLocation

_ATTEMPTS = 4  # TierTranscript may drop and restore inline copies meanwhile.
_INLINE_BYTES = 128 * 1024
"""A smaller body is rebuilt on the event loop: starting a thread takes longer."""

_RELEASED = (Reason.NOT_FOUND, Reason.ATTACHMENT_SET_STATE, Reason.STORED_HASH_DIFFERS)
"""Errors of a payload that is just being released; the last one also of a payload that was lost or
changed.
"""


class StoredBody(NamedTuple):
    """A body as it is in the table, and by how many bytes externalization has shortened it."""

    seq: int
    body: bytes
    dropped_bytes: int


async def rehydrate_entries(
    database: Database, blobs: BlobStore, key: Key, entries: Sequence[StoredEntry]
) -> list[StoredEntry]:
    """Return the entries with complete bodies, at no cost if all are complete.

    Not to be called inside a transaction. Raises DEPENDENCY_UNAVAILABLE while the blob store is
    unavailable, STORED_HASH_DIFFERS for a payload that was lost or changed, and NOT_FOUND if the
    transcript was deleted meanwhile.
    """
    externalized = [
        StoredBody(entry.seq, entry.body, entry.dropped_bytes) for entry in entries if entry.dropped_bytes
    ]
    if not externalized:
        return list(entries)
    bodies = await rehydrate_bodies(database, blobs, key, externalized)
    return [
        entry._replace(body=bodies[entry.seq], dropped_bytes=0) if entry.dropped_bytes else entry
        for entry in entries
    ]


async def rehydrate_bodies(
    database: Database, blobs: BlobStore, key: Key, stored: Sequence[StoredBody]
) -> Mapping[int, bytes]:
    """Return the complete bodies, by seq, of those that externalization has shortened.

    Raises as `rehydrate_entries` does.
    """
    externalized = {one.seq: one for one in stored if one.dropped_bytes}
    complete: dict[int, bytes] = {}
    for _ in range(_ATTEMPTS):
        if not externalized:
            return complete
        complete |= await _rebuild(database, blobs, key, list(externalized.values()))
        # A payload of the others was released since its inline copy is back, or it was lost or
        # changed.
        externalized = await _read_again(database, key, externalized.keys() - complete.keys(), complete)
    if externalized:
        raise stored_hash_differs("a payload of the transcript is missing, or is not what it was")
    return complete


async def _rebuild(
    database: Database, blobs: BlobStore, key: Key, externalized: Sequence[StoredBody]
) -> dict[int, bytes]:
    """Return the complete bodies of those whose payloads could all be fetched."""
    async with database.transaction(key.tenant_id) as connection:
        files = await tier_store.list_payloads(connection, key, [one.seq for one in externalized])
    rebuilt: dict[int, bytes] = {}

    async def rebuild(one: StoredBody) -> None:
        body = await _rebuild_body(blobs, key, one, files.get(one.seq, ()))
        if body is not None:
            rebuilt[one.seq] = body

    await run_concurrently(map(rebuild, externalized))
    return rebuilt


async def _rebuild_body(
    blobs: BlobStore, key: Key, stored: StoredBody, files: Sequence[PayloadLocation]
) -> bytes | None:
    missing = [file for file in files if not file.is_inline]
    try:
        fetched = [await blobs.fetch(key.tenant_id, file.blob_id, sha256=file.sha256) for file in missing]
    except MeshError as error:
        if error.reason not in _RELEASED:
            raise
        return None
    if not missing:
        return None
    payloads = {file.block_index: data for file, data in zip(missing, fetched, strict=True)}
    size = len(stored.body) + stored.dropped_bytes
    if size <= _INLINE_BYTES:
        body = with_payloads(stored.body, payloads)
    else:
        body = await asyncio.to_thread(with_payloads, stored.body, payloads)
    if len(body) != size:
        raise stored_hash_differs(f"entry {stored.seq} cannot be rebuilt from its payloads")
    return body


async def _read_again(
    database: Database, key: Key, seqs: Collection[int], complete: dict[int, bytes]
) -> dict[int, StoredBody]:
    """Read the entries again: add complete bodies to `complete`, and return the others."""
    if not seqs:
        return {}
    async with database.transaction(key.tenant_id) as connection:
        entries = await entry_store.get_entries(connection, key, seqs)
    complete |= {entry.seq: entry.body for entry in entries.values() if not entry.dropped_bytes}
    return {
        entry.seq: StoredBody(entry.seq, entry.body, entry.dropped_bytes)
        for entry in entries.values()
        if entry.dropped_bytes
    }
