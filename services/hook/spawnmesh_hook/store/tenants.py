"""The settings of tenants, and the rows that a purge of one deletes."""

from dataclasses import dataclass

from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.statements import load_statements

_SQL = load_statements(__name__)

# Plugins first, so that no plugin is called any more. Outbox entries go before their events.
PURGED_TABLES = (
    "plugins",
    "outbox_entries",
    "observed_events",
    "decisions",
    "run_revisions",
    "revision_keys",
    "plugin_waits",
    "allowed_spawns",
    "deliveries",
)


@dataclass(frozen=True, slots=True)
class PurgedPage:
    """The number of deleted rows, and of plugins among them."""

    row_count: int
    plugin_count: int


async def get_settings_version(connection: Connection, tenant_id: str) -> int | None:
    """Return the version of the tenant's settings, or None if the tenant was not prepared."""
    row = await (await connection.execute(_SQL["get_settings_version"], {"tenant_id": tenant_id})).fetchone()
    return None if row is None else int(row["settings_version"])


async def masks_secrets(database: Database, tenant_id: str) -> bool:
    """Return whether plugins see the tenant's content with masked secrets. Takes one round trip."""
    async with database.pipelined(tenant_id) as connection:
        cursor = await connection.execute(_SQL["masks_secrets"], {"tenant_id": tenant_id})
    row = await cursor.fetchone()
    return row is not None and bool(row["mask_secrets"])


async def put_settings(
    connection: Connection, tenant_id: str, settings_version: int, *, mask_secrets: bool
) -> None:
    """Store the settings, unless the tenant has settings of this version or a newer one."""
    parameters = {"settings_version": settings_version, "mask_secrets": mask_secrets}
    await connection.execute(_SQL["put_settings"], {"tenant_id": tenant_id, **parameters})


async def delete_settings(connection: Connection, tenant_id: str) -> None:
    """Delete the tenant's settings."""
    await connection.execute(_SQL["delete_settings"], {"tenant_id": tenant_id})


async def purge_rows(connection: Connection, tenant_id: str, table: str, limit: int) -> int:
    """Delete about `limit` rows of one of PURGED_TABLES, all of a key together. Return how many."""
    parameters = {"tenant_id": tenant_id, "limit": limit}
    return (await connection.execute(_SQL[f"purge_{table}"], parameters)).rowcount


async def purge_page(connection: Connection, tenant_id: str, limit: int) -> PurgedPage:
    """Delete about `limit` rows, table by table."""
    rows = plugins = 0
    for table in PURGED_TABLES:
        deleted = await purge_rows(connection, tenant_id, table, limit - rows)
        rows += deleted
        if table == "plugins":
            plugins = deleted
        if rows >= limit:
            break
    return PurgedPage(rows, plugins)
