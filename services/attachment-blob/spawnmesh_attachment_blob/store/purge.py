"""Steps of a tenant's purge. Each function runs within the caller's transaction."""

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_attachment_blob.store.tenants import lock_tenant

_SQL = load_statements(__name__)


async def mark_purging(connection: Connection, tenant_id: str, settings_version: int) -> None:
    """Mark the tenant as purging and wait for transactions that store something for it.

    From the commit on nothing new is stored. A tenant with newer settings is left unchanged.
    """
    arguments = {"tenant_id": tenant_id, "settings_version": settings_version}
    await connection.execute(_SQL["wait_for_stores"], arguments)
    await connection.execute(_SQL["mark_purging"], arguments)


async def lock_purge(connection: Connection, tenant_id: str, settings_version: int) -> bool:
    """Return whether the tenant is still to be purged. Lock it until the transaction ends."""
    arguments = {"tenant_id": tenant_id, "settings_version": settings_version}
    await lock_tenant(connection, tenant_id)
    row = await (await connection.execute(_SQL["lock_purge"], arguments)).fetchone()
    return row is None or bool(row["is_to_purge"])


async def purge_rows(connection: Connection, tenant_id: str, limit: int) -> int:
    """Delete up to `limit` rows of each table except the tenant's own row, and return how many."""
    count = 0
    for statement in ("purge_set_files", "purge_sets", "purge_uploads", "purge_blobs"):
        cursor = await connection.execute(_SQL[statement], {"tenant_id": tenant_id, "limit": limit})
        count += cursor.rowcount
    return count


async def purge_tenant(connection: Connection, tenant_id: str) -> int:
    """Delete the tenant's own row and return how many rows were deleted."""
    return (await connection.execute(_SQL["purge_tenant"], {"tenant_id": tenant_id})).rowcount


async def has_rows(connection: Connection, tenant_id: str) -> bool:
    """Return whether any table has a row of the tenant."""
    row = await (await connection.execute(_SQL["has_rows"], {"tenant_id": tenant_id})).fetchone()
    return row is None or bool(row["has_rows"])
