"""The number of rows of the transcript service's tables that statements read."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from spawnmesh_postgres.database import Connection, Database
from spawnmesh_transcript.domain.transcripts import Key

Work = Callable[[Connection, Key], Awaitable[object]]

_GROWING = ("entries", "stubs", "payloads", "summaries", "activities", "appends")
"""Tables with many rows for a transcript. The others have one row for a tenant or a transcript;
reading their few pages completely is right."""


class Counted(Database):
    """Counts the rows of growing tables that transactions read."""

    def __init__(self, database: Database) -> None:
        super().__init__(database.connections)
        self.rows_read = 0

    @asynccontextmanager
    async def transaction(self, tenant_id: str) -> AsyncIterator[Connection]:
        async with super().transaction(tenant_id) as connection:
            before = await _looked_at(connection, _GROWING)
            yield connection
            self.rows_read += await _looked_at(connection, _GROWING) - before


async def rows_read(database: Database, key: Key, work: Work) -> int:
    """Run the work, return the rows read by table, and roll it back."""
    try:
        async with database.transaction(key.tenant_id) as connection:
            before = await _looked_at(connection)
            await work(connection, key)
            raise _RolledBack(await _looked_at(connection) - before)
    except _RolledBack as done:
        return done.rows


async def _looked_at(connection: Connection, tables: Sequence[str] | None = None) -> int:
    """Return the rows read in these tables, or in all."""
    statement = """
        select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint as rows from pg_stat_xact_user_tables
        where %(tables)s::text[] is null or relname = any(%(tables)s)
    """
    row = await (await connection.execute(statement, {"tables": tables and list(tables)})).fetchone()
    return int(row["rows"] or 0) if row else 0


class _RolledBack(Exception):
    """Rolls the transaction back."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
