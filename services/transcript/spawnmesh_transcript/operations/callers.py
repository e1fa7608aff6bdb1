"""Callers: the transcripts that a run may read."""

from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.caller import Caller, CallerKind

from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.store.transcripts import is_descendant


async def readable_key(database: Database, session_id: str, caller: Caller) -> Key:
    """Return the key of a transcript that is read: a run also reads the descendants of its session.

    Raises NOT_FOUND.
    """
    key = Key(caller.tenant_id, session_id)
    if "\x00" not in session_id:
        if caller.kind is not CallerKind.RUN or caller.session_id == session_id:
            return key
        async with database.transaction(caller.tenant_id) as connection:
            if await is_descendant(connection, key, caller.session_id):
                return key
    raise not_found("transcript", session_id)
