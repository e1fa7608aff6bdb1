"""The prompt window: nothing of it is stored, so that nothing has to be cleaned up when a runner dies in the middle of one."""

from collections.abc import Sequence

from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Database

from spawnmesh_transcript import store
from spawnmesh_transcript.bodies import is_canonical
from spawnmesh_transcript.domain.entries import Head, WriterClaim
from spawnmesh_transcript.domain.refusals import claim_lost, session_takeover
from spawnmesh_transcript.domain.window import (
    Fence,
    Offence,
    WindowEntry,
    entry_offence,
    fence_offence,
    head_offence,
)
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.store import Key
from spawnmesh_transcript.whole import StoredBody, whole_bodies

_SCAN_ROWS = 256
_SCAN_BYTES = 4 * 1024 * 1024


async def open_window(database: Database, key: Key, claim: WriterClaim) -> Fence:
    """The fence at the head. Raises NOT_FOUND, and WRITER_CLAIM_LOST for a claim that is not the current one."""
    head, _ = await _scan(database, key, from_seq=1, row_count=0)
    _require_current(claim, head)
    return Fence(head.incarnation, head.seq, head.chain_hash)


async def close_window(database: Database, payloads: Payloads, key: Key, claim: WriterClaim, fence: Fence) -> Fence:
    """The fence at the head, once all behind the old one is found to be the run's own.

    Raises SESSION_TAKEOVER for the first entry that is not, WRITER_CLAIM_LOST for a claim that was lost without a trace, NOT_FOUND, and what
    making entries whole raises.
    """
    head, entries = await _scan(database, key, from_seq=fence.seq)
    _refuse(fence_offence(fence, head, entries[0] if entries else None), head)
    entries = await _whole(database, payloads, key, entries[1:])
    while fence.seq < head.seq:
        for entry in entries:
            _refuse(entry_offence(fence, entry, claim), head)
            fence = Fence(fence.incarnation, entry.seq, entry.chain_hash)
        if fence.seq < head.seq:
            head, entries = await _scan(database, key, from_seq=fence.seq + 1)
            if head.incarnation != fence.incarnation:
                _refuse(fence_offence(fence, head, None), head)
            if not entries:
                break
            entries = await _whole(database, payloads, key, entries)
    _refuse(head_offence(fence, head), head)
    _require_current(claim, head)
    return fence


async def _scan(
    database: Database, key: Key, *, from_seq: int, row_count: int = _SCAN_ROWS
) -> tuple[Head, list[WindowEntry]]:
    scanned = await store.scan_window(database, key, from_seq=from_seq, row_count=row_count, max_bytes=_SCAN_BYTES)
    if scanned is None:
        raise not_found("transcript", key.session_id)
    return scanned


async def _whole(database: Database, payloads: Payloads, key: Key, entries: Sequence[WindowEntry]) -> list[WindowEntry]:
    """A payload may have left the database while the window was open; the chain is over whole bodies."""
    stored = [StoredBody(entry.seq, entry.body, entry.dropped_bytes) for entry in entries]
    bodies = await whole_bodies(database, payloads, key, stored)
    return [
        entry._replace(
            body=bodies[entry.seq],
            dropped_bytes=0,
            is_canonical=is_canonical(entry.kind, entry.role, bodies[entry.seq]),
        )
        if entry.dropped_bytes
        else entry
        for entry in entries
    ]


def _refuse(offence: Offence | None, head: Head) -> None:
    if offence:
        raise session_takeover(offence, head)


def _require_current(claim: WriterClaim, head: Head) -> None:
    if (head.writer_run_id, head.writer_epoch) != (claim.run_id, claim.epoch):
        raise claim_lost(head)
