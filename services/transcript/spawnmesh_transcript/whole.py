"""Makes entries whole again whose payloads are in the blob store alone. Everybody who reads bodies reads them through here."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database

from spawnmesh_transcript import store, tier_store
from spawnmesh_transcript.cold_bodies import with_payloads
from spawnmesh_transcript.domain.entries import StoredEntry
from spawnmesh_transcript.domain.refusals import stored_hash_differs
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.store import Key
from spawnmesh_transcript.tier_store import KeptPayload

_TRIES = 4  # Inline copies come back and go again by hand.
_INLINE_BYTES = 128 * 1024
"""Up to here a body is made whole on the event loop; a thread costs more than that."""


_GIVEN_UP = (Reason.NOT_FOUND, Reason.ATTACHMENT_SET_STATE, Reason.STORED_HASH_DIFFERS)
"""What the blob store says of a payload that is given up just now, the last of them also of one that was lost or changed."""


class StoredBody(NamedTuple):
    """A body as it is in the table, and by how much it is shorter than it was."""

    seq: int
    body: bytes
    dropped_bytes: int


async def whole_entries(
    database: Database, payloads: Payloads, key: Key, entries: Sequence[StoredEntry]
) -> list[StoredEntry]:
    """The entries with their whole bodies. Costs nothing where all are whole; not to be called inside a transaction.

    Raises DEPENDENCY_UNAVAILABLE while the blob store is away, STORED_HASH_DIFFERS for a payload that is not what it was, and NOT_FOUND where
    the transcript was deleted meanwhile.
    """
    cold = [StoredBody(entry.seq, entry.body, entry.dropped_bytes) for entry in entries if entry.dropped_bytes]
    if not cold:
        return list(entries)
    bodies = await whole_bodies(database, payloads, key, cold)
    return [
        entry._replace(body=bodies[entry.seq], dropped_bytes=0) if entry.dropped_bytes else entry for entry in entries
    ]


async def whole_bodies(
    database: Database, payloads: Payloads, key: Key, stored: Sequence[StoredBody]
) -> Mapping[int, bytes]:
    """As `whole_entries`: the bodies, by their seqs, of those that are not whole."""
    cold = {one.seq: one for one in stored if one.dropped_bytes}
    whole: dict[int, bytes] = {}
    for _ in range(_TRIES):
        if not cold:
            return whole
        whole |= await _made_whole(database, payloads, key, list(cold.values()))
        # Of the others a payload was given up, since the inline copy is back; or it was lost or changed.
        cold = await _read_again(database, key, cold.keys() - whole.keys(), whole)
    if cold:
        raise stored_hash_differs("a payload of the transcript is missing, or is not what it was")
    return whole


async def _made_whole(database: Database, payloads: Payloads, key: Key, cold: Sequence[StoredBody]) -> dict[int, bytes]:
    """Those of them whose payloads are all there."""
    async with database.transaction(key.tenant_id) as connection:
        await store.keep_index_order(connection)
        files = await tier_store.payloads_of_entries(connection, key, [one.seq for one in cold])
    try:
        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(_whole(payloads, key, one, files.get(one.seq, ()))) for one in cold]
    except BaseExceptionGroup as group:  # The others are cut off, and the first says why.
        raise group.exceptions[0] from None
    return {one.seq: body for one, task in zip(cold, made, strict=True) if (body := task.result()) is not None}


async def _whole(payloads: Payloads, key: Key, cold: StoredBody, files: Sequence[KeptPayload]) -> bytes | None:
    missing = [file for file in files if not file.is_inline]
    try:
        fetched = [await payloads.fetch(key.tenant_id, file.blob_id, sha256=file.sha256) for file in missing]
    except MeshError as error:
        if error.reason not in _GIVEN_UP:
            raise
        return None
    if not missing:
        return None
    given = {file.block_index: data for file, data in zip(missing, fetched, strict=True)}
    size = len(cold.body) + cold.dropped_bytes
    inline = size <= _INLINE_BYTES
    body = with_payloads(cold.body, given) if inline else await asyncio.to_thread(with_payloads, cold.body, given)
    if len(body) != size:
        raise stored_hash_differs(f"entry {cold.seq} does not get whole by its payloads")
    return body


async def _read_again(
    database: Database, key: Key, seqs: Collection[int], whole: dict[int, bytes]
) -> dict[int, StoredBody]:
    """Those that are still not whole; the others are written into `whole`."""
    if not seqs:
        return {}
    async with database.transaction(key.tenant_id) as connection:
        await store.keep_index_order(connection)
        entries = await store.read_entries(connection, key, seqs)
    if len(entries) != len(seqs):
        raise not_found("transcript", key.session_id)
    whole |= {entry.seq: entry.body for entry in entries if not entry.dropped_bytes}
    return {
        entry.seq: StoredBody(entry.seq, entry.body, entry.dropped_bytes) for entry in entries if entry.dropped_bytes
    }
