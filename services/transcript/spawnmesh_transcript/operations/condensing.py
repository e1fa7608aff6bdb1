"""Condense messages that were appended while the tenant had no stub tier, and undo it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.cpu_workers import CpuWorkers

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.condensation import CONDENSED_BYTES
from spawnmesh_transcript.domain.entries import EntryKind, NewEntry, StoredEntry
from spawnmesh_transcript.domain.large_results import Stub
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.bodies.condensed import condense
from spawnmesh_transcript.operations.bodies.well_formed import ROLES
from spawnmesh_transcript.operations.externalization import batches
from spawnmesh_transcript.operations.rehydration import rehydrate_entries
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import payloads as payload_store
from spawnmesh_transcript.store import snapshots
from spawnmesh_transcript.store import tier as tier_store
from spawnmesh_transcript.store.entries import EntrySize
from spawnmesh_transcript.store.tier import InlineEntry


@dataclass(slots=True)
class CondensedEntries:
    """The number of entries that were condensed, and the failures by seq."""

    entry_count: int = 0
    failures: dict[int, str] = field(default_factory=dict)


async def condense_entries(
    database: Database,
    blobs: BlobStore,
    workers: CpuWorkers,
    key: Key,
    sizes: Sequence[EntrySize],
    *,
    is_dry_run: bool = False,
) -> CondensedEntries:
    """Condense those of some successive entries that have no stub. A dry run writes nothing."""
    done = CondensedEntries()
    sizes = [size for size in sizes if size.role and _complete_bytes(size) >= CONDENSED_BYTES]
    if not sizes:
        return done
    async with database.transaction(key.tenant_id) as connection:
        stubs = await payload_store.scan_stubs(
            connection, key, first_seq=sizes[0].seq, last_seq=sizes[-1].seq
        )
    stubbed = {stub.seq for stub in stubs}
    left = [InlineEntry(size.seq, _complete_bytes(size)) for size in sizes if size.seq not in stubbed]
    for batch in batches(left):
        seqs = [one.seq for one in batch]
        try:
            found = await _condensed(database, blobs, workers, key, seqs)
        except MeshError as error:  # An image of one of them cannot be read from the blob store.
            done.failures |= dict.fromkeys(seqs, error.reason)
            continue
        if not is_dry_run:
            found = await tier_store.record_condensed(database, key, found) if found else found
        done.entry_count += len(found)
    return done


def as_new(entry: StoredEntry, vocabulary: Vocabulary) -> NewEntry:
    """Return a stored entry as it was before its append, if it is a message."""
    message = pb.EntryBody.FromString(entry.body).message
    return NewEntry(
        kind=EntryKind.MESSAGE,
        body=entry.body,
        token_count=entry.token_count,
        token_vocabulary=vocabulary,
        role=ROLES.get(message.role),
        answers=message.tool_call_id.strip(),
    )


def _complete_bytes(size: EntrySize) -> int:
    return size.stored_bytes + size.dropped_bytes


async def _condensed(
    database: Database, blobs: BlobStore, workers: CpuWorkers, key: Key, seqs: Sequence[int]
) -> list[Stub]:
    """Return the condensed bodies of entries; `place` is the seq of each."""
    async with database.transaction(key.tenant_id) as connection:
        await snapshots.begin_snapshot(connection)
        entries = await entry_store.read_entries(connection, key, seqs)
        vocabularies = await entry_store.read_token_vocabularies(connection, key, seqs)
    complete = await rehydrate_entries(database, blobs, key, entries)
    messages = {
        entry.seq: as_new(entry, vocabularies[entry.seq])
        for entry in complete
        if pb.EntryBody.FromString(entry.body).HasField("message")
    }
    size_bytes = sum(len(message.body) for message in messages.values())
    return await workers.run(key.tenant_id, size_bytes, _condense, messages)


def _condense(messages: Mapping[int, NewEntry]) -> list[Stub]:
    return [replace(stub, place=seq) for seq, message in messages.items() for stub in condense([message])]
