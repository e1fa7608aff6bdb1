"""Find the lines of a batch that an earlier batch of the file has already."""

import re
from collections.abc import Collection

from spawnmesh_postgres.database import Database

from spawnmesh_transcript.domain.dialects.recognition import Dialect
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.session_files.session_file import SessionFile
from spawnmesh_transcript.store import imports as import_store
from spawnmesh_transcript.store import planner
from spawnmesh_transcript.store.imports import ImportProgress

_UUID = re.compile(rb'"uuid" ?: ?"([\x20-\x21\x23-\x5b\x5d-\x7e]{1,1024})"')
"""The id of a line of Claude Code, which is written without escapes."""


async def find_known_lines(
    database: Database, key: Key, file: SessionFile, progress: ImportProgress, data: bytes
) -> Collection[str]:
    """Return the ids of the stored entries whose lines these lines of Claude Code repeat.

    Lines of other dialects have none: in a file of pi, a repeated id is malformed. Not to be called
    inside a transaction.
    """
    if progress.dialect != Dialect.CLAUDE_CODE:
        return ()
    ids = {file.entry_id(found.decode()) for found in _UUID.findall(data)}
    async with database.transaction(key.tenant_id) as connection:
        await planner.keep_index_order(connection)
        return await import_store.find_entry_seqs(connection, key, ids)
