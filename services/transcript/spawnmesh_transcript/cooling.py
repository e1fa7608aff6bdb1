"""Drops the inline copies of payloads that the blob store has, once it was seen that the entry can be made whole of them, byte for byte."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import psycopg
from psycopg_pool import PoolTimeout
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_transcript import store, tier_store
from spawnmesh_transcript.cold_bodies import with_payloads, without_payloads
from spawnmesh_transcript.domain.entries import StoredEntry
from spawnmesh_transcript.domain.tier import TailLimits, newest_stale
from spawnmesh_transcript.domain.turns import Turn
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.store import Key, Transcript
from spawnmesh_transcript.tier_store import InlineEntry, KeptPayload, ShorterBody

BATCH_ENTRIES = 16
BATCH_BYTES = 4 * 1024 * 1024
"""What is worked on at a time, and dropped in one transaction; a single entry may be larger."""

_TAIL = TailLimits()
_TAIL_ROWS = 128


@dataclass(slots=True)
class Cooled:
    """What was dropped, and at which entries it failed for what reason: these are as they were."""

    entry_count: int = 0
    size_bytes: int = 0
    failures: dict[int, Reason] = field(default_factory=dict)


async def find_stale_seq(connection: Connection, key: Key, transcript: Transcript) -> int:
    """The newest seq that is no longer fresh, as contexts see it that ask for no other tail; 0 where all is. Needs `keep_index_order`."""
    turns: list[Turn] = []
    before_seq, row_count = transcript.head.seq + 1, _TAIL_ROWS
    while True:
        rows = await store.scan_entries(connection, key, after_seq=0, before_seq=before_seq, row_count=row_count)
        turns += [row.turn for row in rows if row.turn]
        stale_seq = newest_stale(
            turns, turn_count=transcript.turn_count, token_count=transcript.token_count, limits=_TAIL
        )
        if stale_seq or len(rows) < row_count:
            return stale_seq
        before_seq = rows[-1].seq
        row_count *= 2


async def cool(database: Database, payloads: Payloads, key: Key, entries: Sequence[InlineEntry]) -> Cooled:
    """Drops what the entries have inline. Those that somebody else moved meanwhile are neither dropped nor failed."""
    cooled = Cooled()
    for batch in batches(entries):
        seqs = [entry.seq for entry in batch]
        try:
            await _cool(database, payloads, key, seqs, cooled)
        except (psycopg.Error, PoolTimeout):
            cooled.failures |= dict.fromkeys(seqs, Reason.DEPENDENCY_UNAVAILABLE)
    return cooled


def batches(entries: Sequence[InlineEntry]) -> Iterator[list[InlineEntry]]:
    """The entries in their order, in batches of a bounded size."""
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


async def _cool(database: Database, payloads: Payloads, key: Key, seqs: Sequence[int], cooled: Cooled) -> None:
    async with database.transaction(key.tenant_id) as connection:
        await store.keep_index_order(connection)
        entries = await store.read_entries(connection, key, seqs)
        kept = await tier_store.payloads_of_entries(connection, key, seqs)
    able = [
        entry
        for entry in entries
        if not entry.dropped_bytes and entry.seq in kept and all(file.is_stored for file in kept[entry.seq])
    ]
    bodies = await asyncio.gather(*(_checked(payloads, key, entry, kept[entry.seq]) for entry in able))
    cooled.failures |= {
        entry.seq: body for entry, body in zip(able, bodies, strict=True) if not isinstance(body, ShorterBody)
    }
    shorter = [body for body in bodies if isinstance(body, ShorterBody)]
    if shorter:
        dropped = await tier_store.cool_entries(database, key, shorter)
        cooled.entry_count += len(dropped)
        cooled.size_bytes += sum(dropped.values())


async def _checked(
    payloads: Payloads, key: Key, entry: StoredEntry, files: Sequence[KeptPayload]
) -> ShorterBody | Reason:
    """The body without its payloads, if it can be made whole of what the blob store gives; else why not."""
    try:
        fetched = {
            file.block_index: await payloads.fetch(key.tenant_id, file.blob_id, sha256=file.sha256) for file in files
        }
        body = await asyncio.to_thread(_shortened, entry.body, fetched)
    except MeshError as error:
        return error.reason
    except ValueError:  # There is no such block.
        return Reason.STORED_HASH_DIFFERS
    if body is None:
        return Reason.STORED_HASH_DIFFERS
    return ShorterBody(entry.seq, len(entry.body), [file.blob_id for file in files], body)


def _shortened(body: bytes, payloads: dict[int, bytes]) -> bytes | None:
    """None where they do not make it whole again."""
    shorter = without_payloads(body, payloads)
    return shorter if with_payloads(shorter, payloads) == body else None
