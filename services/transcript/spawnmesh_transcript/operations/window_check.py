"""The check of a prompt window: everything since its fence is the run's own work.

The incarnation is the same, the entry of the fence still has the hash of the fence, and every later
entry continues the chain, is well formed, was written under this claim, and is a message of role
ASSISTANT, TOOL_RESULT or BASH_EXECUTION.
"""

from collections.abc import Sequence

from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Database

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.entries import Head, WriterClaim
from spawnmesh_transcript.domain.prompt_window import (
    Fence,
    Offence,
    WindowEntry,
    entry_offence,
    fence_offence,
    head_offence,
)
from spawnmesh_transcript.domain.refusals import require_current, session_takeover
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.bodies.well_formed import is_canonical
from spawnmesh_transcript.operations.rehydration import StoredBody, rehydrate_bodies
from spawnmesh_transcript.store import entries as entry_store

_SCAN_ROWS = 256
_SCAN_BYTES = 4 * 1024 * 1024


async def moved_fence(
    database: Database, blobs: BlobStore, key: Key, claim: WriterClaim, fence: Fence
) -> Fence:
    """Return the fence at the head if the run wrote every entry after the old fence.

    Raises SESSION_TAKEOVER for the first entry that it did not write, WRITER_CLAIM_LOST for a claim
    that was lost without such an entry, NOT_FOUND, and what `rehydrate_bodies` raises.
    """
    head, before_hash, scanned = await _scan(database, key, from_seq=fence.seq)
    entries = await _rehydrate(database, blobs, key, scanned)
    _refuse(fence_offence(fence, head, before_hash, entries[0] if entries else None), head)
    entries = entries[1:]
    while fence.seq < head.seq:
        for entry in entries:
            _refuse(entry_offence(fence, entry, claim), head)
            fence = Fence(fence.incarnation, entry.seq, entry.chain_hash)
        if fence.seq < head.seq:
            head, before_hash, scanned = await _scan(database, key, from_seq=fence.seq + 1)
            if head.incarnation != fence.incarnation:
                _refuse(fence_offence(fence, head, before_hash, None), head)
            if not scanned:
                break
            entries = await _rehydrate(database, blobs, key, scanned)
    _refuse(head_offence(fence, head), head)
    require_current(claim, head)
    return fence


async def _scan(database: Database, key: Key, *, from_seq: int) -> tuple[Head, bytes, list[WindowEntry]]:
    scanned = await entry_store.scan_window(
        database, key, from_seq=from_seq, row_count=_SCAN_ROWS, max_bytes=_SCAN_BYTES
    )
    if scanned is None:
        raise not_found("transcript", key.session_id)
    return scanned


async def _rehydrate(
    database: Database, blobs: BlobStore, key: Key, entries: Sequence[WindowEntry]
) -> list[WindowEntry]:
    """Return the entries with complete bodies, and whether each is canonical.

    A payload may have been externalized while the window was open; the chain is over complete
    bodies.
    """
    stored = [StoredBody(entry.seq, entry.body, entry.dropped_bytes) for entry in entries]
    bodies = await rehydrate_bodies(database, blobs, key, stored)
    complete = (
        entry._replace(body=bodies[entry.seq], dropped_bytes=0) if entry.dropped_bytes else entry
        for entry in entries
    )
    return [
        entry._replace(is_canonical=is_canonical(entry.kind, entry.role, entry.body)) for entry in complete
    ]


def _refuse(offence: Offence | None, head: Head) -> None:
    if offence:
        raise session_takeover(offence, head)
