"""Read the newest results that do not fit a context, and cut each to its share."""

import asyncio
from dataclasses import dataclass

from spawnmesh_postgres.database import Database

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.entries import StoredEntry
from spawnmesh_transcript.domain.selection import batches
from spawnmesh_transcript.domain.token_vocabularies import Measure, Vocabulary
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.turns import turns_of
from spawnmesh_transcript.operations.bodies.cut_results import cut_result
from spawnmesh_transcript.operations.context_selection import Chosen
from spawnmesh_transcript.operations.rehydration import rehydrate_entries
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import payloads as payload_store

_BATCH_ENTRIES = 64


@dataclass(frozen=True, slots=True)
class ShortenedResult:
    """A result of which the context has the beginning: `shown_bytes` of `size_bytes`.

    The entry has the cut body and its tokens in the context's measure. `file_ids` are the files
    that have the complete texts and images.
    """

    entry: StoredEntry
    file_ids: tuple[str, ...]
    full_token_count: int
    shown_bytes: int
    size_bytes: int


async def cut_results(
    database: Database, blobs: BlobStore, key: Key, chosen: Chosen, measure: Measure
) -> tuple[ShortenedResult, ...]:
    """Return the results that the context shows in part, oldest first.

    The complete bodies are read in batches, since together they may be larger than memory allows.
    Raises as `rehydrate_entries` does.
    """
    turns = [turn for turn in turns_of(chosen.groups) if turn.seq in chosen.cut]
    shortened: list[ShortenedResult] = []
    for batch in batches(turns, max_count=_BATCH_ENTRIES):
        seqs = [turn.seq for turn in batch]
        async with database.transaction(key.tenant_id) as connection:
            stored = await entry_store.get_entries(connection, key, seqs)
            files = await payload_store.list_stored_files(connection, key, seqs)
        entries = await rehydrate_entries(database, blobs, key, [stored[seq] for seq in seqs])
        for turn, entry in zip(batch, entries, strict=True):
            share = chosen.cut[turn.seq]
            file_ids = {file.block_index: file.file_id for file in files.get(turn.seq, ())}
            cut = await asyncio.to_thread(
                cut_result,
                entry.body,
                file_ids,
                token_count=measure.within(share.token_count, turn.counted_by),
                size_bytes=share.size_bytes,
                vocabulary=Vocabulary(turn.counted_by),
            )
            token_count = measure.of(cut.token_count, turn.counted_by)
            shortened.append(
                ShortenedResult(
                    entry._replace(body=cut.body, token_count=token_count),
                    tuple(file_ids.values()),
                    turn.token_count,
                    cut.shown_bytes,
                    cut.size_bytes,
                )
            )
    return tuple(shortened)
