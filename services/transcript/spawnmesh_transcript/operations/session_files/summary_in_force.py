"""Put the newest compaction of an imported file in force."""

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_postgres.database import Connection

from spawnmesh_transcript.domain.dialects.recognition import Dialect
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.bodies.tokens import count_tokens
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import imports as import_store
from spawnmesh_transcript.store.imports import ImportProgress


async def put_summary_in_force(
    connection: Connection, key: Key, progress: ImportProgress, leaf_entry_id: str, vocabulary: Vocabulary
) -> None:
    """Let contexts have the newest summary on the branch in place of what it replaced.

    Needs `import_store.lock_import`, and other branches to be marked.
    """
    ids = progress.compaction_ids
    if not ids or not Dialect(progress.dialect).has_summaries:
        return
    newest_id = ids[-1]
    if progress.is_branched:
        newest_id = await import_store.find_newest_on_branch(connection, key, leaf_entry_id, ids)
    seqs = await import_store.find_entry_seqs(connection, key, [newest_id])
    if newest_id not in seqs:
        return
    seq = seqs[newest_id]
    [entry] = await entry_store.read_entries(connection, key, [seq])
    compaction = pb.EntryBody.FromString(entry.body).compaction
    kept_id = compaction.first_kept_entry_id
    kept = await import_store.find_entry_seqs(connection, key, [kept_id]) if kept_id else {}
    first_kept_seq = min(seq, kept.get(kept_id, seq))
    await import_store.insert_imported_summary(
        connection,
        key,
        seq=seq,
        entry_id=newest_id,
        last_source_seq=max(1, first_kept_seq - 1),
        token_count=count_tokens(compaction.summary, vocabulary),
    )
