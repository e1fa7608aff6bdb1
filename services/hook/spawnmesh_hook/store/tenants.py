"""The settings of tenants, and their purge."""

from dataclasses import dataclass

import psycopg
from spawnmesh_core.errors import MeshError
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_hook.domain.errors import UnknownTenant

_SQL = load_statements(__name__)
_PURGED_SQLSTATE = "SM001"  # Raised by the function `refuse_purged` of the schema.

# Plugins first, so that no plugin is called any more. Outbox entries go before their events.
PURGED_TABLES = (
    "plugins",
    "outbox_entries",
    "observed_events",
    "decisions",
    "run_revisions",
    "revision_keys",
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
    (row,) = await database.call(tenant_id, _SQL["masks_secrets"], {})
    return bool(row["masks_secrets"])


async def put_settings(
    connection: Connection, tenant_id: str, settings_version: int, *, mask_secrets: bool
) -> None:
    """Store the settings, unless the tenant has settings of this version or a newer one."""
    parameters = {"settings_version": settings_version, "mask_secrets": mask_secrets}
    await connection.execute(_SQL["put_settings"], {"tenant_id": tenant_id, **parameters})


async def delete_settings(connection: Connection, tenant_id: str) -> None:
    """Delete the tenant's settings."""
    await connection.execute(_SQL["delete_settings"], {"tenant_id": tenant_id})


async def block_writes(connection: Connection, tenant_id: str) -> None:
    """Wait for transactions that add rows for the tenant, and block new ones until commit."""
    await connection.execute(_SQL["block_writes"], {"tenant_id": tenant_id})


async def start_purge(connection: Connection, tenant_id: str, settings_version: int) -> bool:
    """Refuse new rows of the tenant from now on.

    Return False, changing nothing, if the tenant has settings newer than this version. Version 0
    purges the tenant in any case.
    """
    parameters = {"tenant_id": tenant_id, "settings_version": settings_version}
    return await (await connection.execute(_SQL["start_purge"], parameters)).fetchone() is not None


async def lock_purge(connection: Connection, tenant_id: str, settings_version: int) -> bool:
    """Return whether the purge goes on. If so, it cannot end before this transaction does."""
    parameters = {"tenant_id": tenant_id, "settings_version": settings_version}
    return await (await connection.execute(_SQL["lock_purge"], parameters)).fetchone() is not None


async def purge_rows(connection: Connection, tenant_id: str, table: str, limit: int) -> int:
    """Delete at most `limit` rows of one of PURGED_TABLES. Return how many."""
    parameters = {"tenant_id": tenant_id, "limit": limit}
    return (await connection.execute(_SQL[f"purge_{table}"], parameters)).rowcount


async def purge_page(connection: Connection, tenant_id: str, limit: int) -> PurgedPage:
    """Delete at most `limit` rows, table by table."""
    rows = plugins = 0
    for table in PURGED_TABLES:
        deleted = await purge_rows(connection, tenant_id, table, limit - rows)
        rows += deleted
        if table == "plugins":
            plugins = deleted
        if rows == limit:
            break
    return PurgedPage(rows, plugins)


async def finish_purge(connection: Connection, tenant_id: str) -> None:
    """Mark the purge as done. The tenant stays refused until it is prepared anew."""
    await connection.execute(_SQL["finish_purge"], {"tenant_id": tenant_id})


async def delete_older_purge(connection: Connection, tenant_id: str, settings_version: int) -> None:
    """Forget a purge of a tenant with older settings than these, which was created anew since."""
    parameters = {"tenant_id": tenant_id, "settings_version": settings_version}
    await connection.execute(_SQL["delete_older_purge"], parameters)


async def is_purge_done(connection: Connection, tenant_id: str) -> bool | None:
    """Return whether the tenant's purge is done, or None if the tenant is not purged."""
    row = await (await connection.execute(_SQL["is_purge_done"], {"tenant_id": tenant_id})).fetchone()
    return None if row is None else bool(row["is_done"])


def translate_purged(error: BaseException) -> MeshError | None:
    """Return UnknownTenant for a write that the database refused, or None for any other error."""
    if not isinstance(error, psycopg.Error) or error.sqlstate != _PURGED_SQLSTATE:
        return None
    return UnknownTenant("this tenant was deleted")
