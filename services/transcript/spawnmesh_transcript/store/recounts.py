"""Token counts by another vocabulary: what to count again, and the guarded update."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg.rows import args_row
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.store.rows import key_parameters

_SQL = load_statements(__name__)


@dataclass(frozen=True, slots=True)
class ScannedCount:
    """An entry's token count and the vocabulary it was counted by.

    `is_counted` is true for messages, notes and summaries: no other entry has a count.
    """

    seq: int
    token_vocabulary: str
    token_count: int
    size_bytes: int
    is_counted: bool


async def scan_counts(
    connection: Connection, key: Key, *, after_seq: int, row_count: int
) -> list[ScannedCount]:
    """Return the counts of entries behind a seq, oldest first."""
    async with connection.cursor(binary=True, row_factory=args_row(ScannedCount)) as cursor:
        await cursor.execute(
            _SQL["scan_counts"], key_parameters(key, after_seq=after_seq, row_count=row_count)
        )
        return await cursor.fetchall()


async def read_stub_bodies(connection: Connection, key: Key, seqs: Sequence[int]) -> dict[int, bytes]:
    """Return the bodies of the stubs that these entries have, by seq."""
    rows = await connection.execute(
        _SQL["read_stub_bodies"], key_parameters(key, seqs=list(seqs)), binary=True
    )
    return {row["seq"]: row["body"] async for row in rows}


async def recount_entries(
    database: Database,
    key: Key,
    *,
    incarnation: str,
    vocabulary: Vocabulary,
    token_counts: Mapping[int, int],
    stub_token_counts: Mapping[int, int],
    thinking_token_counts: Mapping[int, int],
) -> set[int]:
    """Store counts by seq, in a transaction of its own, and return the seqs for which it did.

    Entries that changed since they were read keep their counts.
    """
    parameters = key_parameters(
        key,
        incarnation=incarnation,
        vocabulary=vocabulary,
        seqs=[*token_counts],
        token_counts=[*token_counts.values()],
        stub_token_counts=[stub_token_counts.get(seq) for seq in token_counts],
        thinking_token_counts=[thinking_token_counts.get(seq) for seq in token_counts],
    )
    _, recounted = await database.transact(
        key.tenant_id,
        (_SQL["lock_for_recount"], key_parameters(key)),
        (_SQL["recount_entries"], parameters),
    )
    return {row["recounted_seq"] for row in recounted}
