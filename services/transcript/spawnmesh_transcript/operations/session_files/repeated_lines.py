"""Find the lines of a batch that an earlier batch of the file has already."""

from collections.abc import Sequence

from spawnmesh_postgres.database import Database

from spawnmesh_transcript.domain.dialects.recognition import Dialect
from spawnmesh_transcript.domain.entries import NewEntry
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.session_files.dialect_lines import without_repeats
from spawnmesh_transcript.operations.session_files.session_file import SessionFile
from spawnmesh_transcript.store import imports as import_store
from spawnmesh_transcript.store import planner
from spawnmesh_transcript.store.imports import ImportProgress


async def keep_repeats_apart(
    database: Database,
    key: Key,
    file: SessionFile,
    reached: ImportProgress,
    entries: Sequence[tuple[int, NewEntry]],
) -> list[tuple[int, NewEntry]]:
    """Return the entries with each line of Claude Code that is in the file already as an opaque
    entry.

    In other files such a line is refused later. Not to be called inside a transaction: another
    stream that stores lines meanwhile makes this one lose its import.
    """
    if reached.dialect != Dialect.CLAUDE_CODE or reached.malformed:
        return list(entries)
    async with database.transaction(key.tenant_id) as connection:
        await planner.keep_index_order(connection)
        known = await import_store.find_entry_seqs(connection, key, [entry.entry_id for _, entry in entries])
    return without_repeats(file, entries, known) if known else list(entries)
