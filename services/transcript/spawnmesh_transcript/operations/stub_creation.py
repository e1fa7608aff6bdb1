"""Create the stubs of large tool results, the files of large images, and condensed messages, where
the tenant's policy has any.
"""

import asyncio
from collections.abc import Sequence

from spawnmesh_postgres.database import Database
from spawnmesh_runtime.cpu_workers import CpuWorkers

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.entries import NewEntry
from spawnmesh_transcript.domain.large_results import Stub
from spawnmesh_transcript.domain.policy import TranscriptPolicy
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.bodies.condensed import condense
from spawnmesh_transcript.operations.bodies.stubs import (
    LargeResult,
    calls_in,
    calls_of,
    image_stubs,
    large_results,
    make_stubs,
)
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import payloads as payload_store


async def create_stubs(
    database: Database,
    blobs: BlobStore,
    workers: CpuWorkers,
    key: Key,
    entries: Sequence[NewEntry],
    policy: TranscriptPolicy,
    *,
    before_seq: int | None = None,
) -> list[Stub]:
    """Return the stubs of entries that are about to be appended, or that begin at `before_seq`.

    The calls that the results answer are read from the transcript, unless the entries themselves
    make them. Not to be called inside a transaction.
    """
    if not policy.stub_large_tool_payloads:
        return []
    results, images = _find_large(entries, blobs, policy)
    stubs: list[Stub] = []
    if results:
        calls = calls_in(entries)
        missing = {result.call_id for result in results} - calls.keys()
        if missing:
            calls = await _read_calls(database, key, missing, before_seq=before_seq) | calls
        size_bytes = sum(result.body.ByteSize() for result in results)
        stubs = await workers.run(key.tenant_id, size_bytes, make_stubs, results, calls)
    size_bytes, places = sum(len(entry.body) for entry in entries), [stub.place for stub in stubs]
    condensed = await workers.run(key.tenant_id, size_bytes, condense, entries, except_places=places)
    return [*stubs, *images, *condensed]


async def create_stubs_of_fork(
    blobs: BlobStore, entries: Sequence[NewEntry], policy: TranscriptPolicy
) -> list[Stub]:
    """Return the stubs of the entries of a fork, which has the call of every result.

    They are made in a thread: the caller is in a transaction, in which it may not wait for a
    worker process.
    """
    if not policy.stub_large_tool_payloads:
        return []
    results, images = _find_large(entries, blobs, policy)
    stubs = await asyncio.to_thread(make_stubs, results, calls_in(entries)) if results else []
    places = [stub.place for stub in stubs]
    return [*stubs, *images, *await asyncio.to_thread(condense, entries, except_places=places)]


def _find_large(
    entries: Sequence[NewEntry], blobs: BlobStore, policy: TranscriptPolicy
) -> tuple[list[LargeResult], list[Stub]]:
    if not blobs.is_connected:
        return [], []
    return (
        large_results(entries, large_payload_bytes=policy.large_payload_bytes),
        image_stubs(entries, large_payload_bytes=policy.large_payload_bytes),
    )


async def _read_calls(
    database: Database, key: Key, call_ids: set[str], *, before_seq: int | None
) -> dict[str, str]:
    """Return tool calls as JSON by their ids; of two calls with one id, the newer."""
    async with database.transaction(key.tenant_id) as connection:
        seqs = await payload_store.find_calls(connection, key, call_ids, before_seq=before_seq)
        entries = await entry_store.read_entries(connection, key, seqs)
    calls: dict[str, str] = {}
    for entry in sorted(entries, key=lambda entry: entry.seq):
        calls |= calls_of(entry.body)
    return calls
