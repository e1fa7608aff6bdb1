"""The rows that a statement reads, with each kind of plan."""

from collections.abc import Sequence
from typing import Any

from spawnmesh_postgres.database import Connection, Database

MODES = ("force_custom_plan", "force_generic_plan")

_COUNTED = """
select coalesce(sum(pg_stat_get_xact_tuples_returned(read)), 0)::bigint as count
from unnest(%(tables)s::text[]) as name
cross join lateral (
    select name::regclass as read
    union all
    select indexrelid from pg_index where indrelid = name::regclass
) relations
"""


async def rows_read_by(
    database: Database,
    tenant_id: str,
    tables: Sequence[str],
    statement: str,
    values: dict[str, Any],
    mode: str,
) -> int:
    """Run the statement, and return the rows of these tables and their indexes that it reads."""
    async with database.transaction(tenant_id) as connection:
        await connection.execute("select set_config('plan_cache_mode', %s, true)", (mode,))
        before = await _count(connection, tables)
        await (await connection.execute(statement, values)).fetchall()
        return await _count(connection, tables) - before


async def _count(connection: Connection, tables: Sequence[str]) -> int:
    row = await (await connection.execute(_COUNTED, {"tables": list(tables)})).fetchone()
    assert row is not None
    return int(row["count"])
