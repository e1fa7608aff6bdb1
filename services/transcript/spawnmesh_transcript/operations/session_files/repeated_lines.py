"""Find the lines of a batch that an earlier batch of the file has already."""

from collections.abc import Collection, Sequence

from spawnmesh_postgres.database import Database

from spawnmesh_transcript.domain.dialects.recognition import Dialect
from spawnmesh_transcript.domain.entries import NewEntry
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.store import imports as import_store
from spawnmesh_transcript.store.imports import ImportProgress


async def find_repeated(
    database: Database, key: Key, reached: ImportProgress, entries: Sequence[tuple[int, NewEntry]]
) -> Collection[str]:
    """Return the ids of stored entries that lines of Claude Code repeat: read the batch again with
    them.

    Lines of other dialects have none: in a file of pi, a repeated id is malformed. Not to be called
    inside a transaction.
    """
    if reached.dialect != Dialect.CLAUDE_CODE:
        return ()
    async with database.transaction(key.tenant_id) as connection:
        return await import_store.find_entry_seqs(connection, key, [entry.entry_id for _, entry in entries])
