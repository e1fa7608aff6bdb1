"""The statements about contexts alone as functions. Each runs in the caller's transaction."""

from typing import NamedTuple

from psycopg.rows import args_row
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.store import Key

_SQL = load_statements("spawnmesh_transcript")


class ScannedReference(NamedTuple):
    """What a context may have in place of an entry once it is stored, without its body."""

    seq: int
    token_count: int
    size_bytes: int
    is_stored: bool


async def scan_references(connection: Connection, key: Key, *, first_seq: int, last_seq: int) -> list[ScannedReference]:
    """Those of the entries between two seqs."""
    async with connection.cursor(binary=True, row_factory=args_row(ScannedReference)) as cursor:
        parameters = {"tenant_id": key.tenant_id, "session_id": key.session_id}
        await cursor.execute(_SQL["scan_references"], {**parameters, "first_seq": first_seq, "last_seq": last_seq})
        return await cursor.fetchall()
