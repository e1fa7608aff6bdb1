"""Read the tables of the transcript service past row-level security, and measure its statements."""

import json
from typing import Any

from psycopg import AsyncConnection, sql
from spawnmesh_postgres.database import Connection

Superuser = AsyncConnection[tuple[Any, ...]]


async def rows_of(superuser: Superuser, tenant_id: str) -> dict[str, int]:
    """Return the number of the tenant's rows by table, without tables that have none, and without
    the audit log, which outlives the tenant.
    """
    counts: dict[str, int] = {}
    for table in await _tables(superuser):
        statement = sql.SQL("select count(*) from transcript.{} where tenant_id = %s")
        counting = statement.format(sql.Identifier(table))
        row = await (await superuser.execute(counting, (tenant_id,))).fetchone()
        counts[table] = row[0] if row else 0
    return {table: count for table, count in counts.items() if count and not table.startswith("audit_")}


async def stored_bytes_of(superuser: Superuser, tenant_id: str) -> bytes:
    """Return the values of all the tenant's rows in all tables; bytes are returned as they are."""
    values: list[bytes] = []
    for table in await _tables(superuser):
        statement = sql.SQL("select * from transcript.{} where tenant_id = %s")
        rows = await superuser.execute(statement.format(sql.Identifier(table)), (tenant_id,))
        for row in await rows.fetchall():
            values += [value if isinstance(value, bytes) else repr(value).encode() for value in row]
    return b"\n".join(values)


async def _tables(superuser: Superuser) -> list[str]:
    """Return the names of the service's own tables, without those of the migration tool."""
    listed = await superuser.execute("select tablename from pg_tables where schemaname = 'transcript'")
    tables = [table for (table,) in await listed.fetchall() if not table.startswith(("_", "yoyo"))]
    assert len(tables) >= 3
    return tables


async def pages_touched(connection: Connection, statement: str, parameters: dict[str, Any]) -> int:
    """Run the statement and return the number of buffer pages that it read."""
    explained = f"explain (analyze, buffers, timing off, format json) {statement}"
    row = await (await connection.execute(explained, parameters)).fetchone()
    assert row is not None
    found = row["QUERY PLAN"]
    plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])
