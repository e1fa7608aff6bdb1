"""States of sets, and tombstones."""

from spawnmesh_attachment_blob.store import garbage
from spawnmesh_attachment_blob.store.garbage import BEFORE_ALL_TOMBSTONES, Tombstone
from spawnmesh_postgres.database import Database

from tests.support.attachment_blob.fixtures import Tenant

DAY = 24 * 3600


async def states(tenant: Tenant) -> dict[str, str]:
    """Return the states of the tenant's sets, by set id."""
    return {row["set_id"]: row["state"] for row in await tenant.rows("sets")}


async def page_of(database: Database, tenant: Tenant, limit: int = 200) -> list[Tombstone]:
    """Return the tenant's tombstones that are older than 30 days."""
    async with database.transaction(tenant.tenant_id) as connection:
        return await garbage.old_tombstones(
            connection, tenant.tenant_id, BEFORE_ALL_TOMBSTONES, limit, 30 * DAY
        )
