"""Purges of tenants in the database."""

from enum import Enum, auto

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

_SQL = load_statements(__name__)


class PurgeState(Enum):
    """The state of a tenant's purge."""

    NONE = auto()
    """The tenant is not purged."""
    UNDER_WAY = auto()
    """Rows of the tenant may be left."""
    DONE = auto()
    """No row of the tenant is left."""


async def end_earlier_purge(connection: Connection, tenant_id: str, settings_version: int) -> PurgeState:
    """Delete the purge of an earlier tenant with this id. Return the state of a purge that remains.

    No purge of the tenant begins until the transaction ends. A purge remains if it concerns these
    settings or newer ones.
    """
    parameters = {"tenant_id": tenant_id, "settings_version": settings_version}
    await connection.execute(_SQL["lock_tenant"], parameters)
    await connection.execute(_SQL["delete_purge"], parameters)
    row = await (await connection.execute(_SQL["is_purge_done"], parameters)).fetchone()
    if row is None:
        return PurgeState.NONE
    return PurgeState.DONE if row["is_done"] else PurgeState.UNDER_WAY


async def begin_purge(connection: Connection, tenant_id: str, settings_version: int) -> bool:
    """Mark the tenant as purged: from now on its usage is not stored.

    Return False, with nothing changed, if the tenant has newer settings than `settings_version`.
    """
    parameters = {"tenant_id": tenant_id, "settings_version": settings_version}
    await connection.execute(_SQL["lock_tenant"], parameters)
    return await (await connection.execute(_SQL["begin_purge"], parameters)).fetchone() is not None


async def lock_purge(connection: Connection, tenant_id: str, settings_version: int) -> bool:
    """Return whether the tenant is still to be purged.

    The answer holds until the transaction ends.
    """
    parameters = {"tenant_id": tenant_id, "settings_version": settings_version}
    return await (await connection.execute(_SQL["lock_purge"], parameters)).fetchone() is not None


async def end_purge(connection: Connection, tenant_id: str) -> None:
    """Record that no row of the tenant is left."""
    await connection.execute(_SQL["end_purge"], {"tenant_id": tenant_id})
