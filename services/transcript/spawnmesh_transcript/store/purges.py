"""Purge of a tenant: its mark, and its rows page by page."""

from dataclasses import dataclass

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

_SQL = load_statements(__name__)

PURGED_TABLES = (
    "entries",
    "appends",
    "search_progress",
    "search_pieces",
    "stubs",
    "summaries",
    "payloads",
    "imports",
    "transcripts",
    "activities",
    "activity_heads",
)
"""The tables in the order of their deletion: rows may be written for a transcript while its row
exists.
"""


@dataclass(frozen=True, slots=True)
class PurgedRows:
    """The number of deleted rows, and of readable transcripts among them."""

    row_count: int
    transcript_count: int


async def begin_purge(connection: Connection, tenant_id: str, settings_version: int) -> bool:
    """Mark the tenant as being purged, after all transactions that hold `enter_tenant`.

    Returns False if the tenant has newer settings than those to purge.
    """
    await connection.execute(_SQL["begin_purge"], {"tenant_id": tenant_id})
    return await _gives_row(connection, "mark_purging", tenant_id, settings_version)


async def lock_purge(connection: Connection, tenant_id: str, settings_version: int) -> bool:
    """Lock the tenant's row until the transaction ends, and return whether it is still to be
    purged.
    """
    return await _gives_row(connection, "lock_purge", tenant_id, settings_version)


async def supersede_purge(connection: Connection, tenant_id: str, settings_version: int) -> bool:
    """End the purge of an earlier tenant that has no rows left. Returns False if there is none."""
    return await _gives_row(connection, "supersede_purge", tenant_id, settings_version)


async def _gives_row(connection: Connection, statement: str, tenant_id: str, settings_version: int) -> bool:
    """Return whether the statement returned a row."""
    parameters = {"tenant_id": tenant_id, "settings_version": settings_version}
    return await (await connection.execute(_SQL[statement], parameters)).fetchone() is not None


async def purge_page(connection: Connection, tenant_id: str, row_count: int) -> PurgedRows:
    """Delete up to `row_count` rows, table by table."""
    rows = transcripts = 0
    for table in PURGED_TABLES:
        left = {"tenant_id": tenant_id, "row_count": row_count - rows}
        cursor = await connection.execute(_SQL[f"purge_{table}"], left)
        rows += cursor.rowcount
        if table == "transcripts":
            transcripts = sum(row["was_live"] for row in await cursor.fetchall())
        if rows >= row_count:
            break
    return PurgedRows(rows, transcripts)


async def end_purge(connection: Connection, tenant_id: str) -> None:
    """Delete the tenant's row."""
    await connection.execute(_SQL["end_purge"], {"tenant_id": tenant_id})
