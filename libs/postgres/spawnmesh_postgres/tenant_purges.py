"""The fence between the purge of a tenant and the transactions that add rows for it.

Each participant in the life of a tenant has a table `purged_tenants`:

    tenant_id        text primary key
    settings_version bigint       -- The newest settings of the purged tenant, or 0 if not given.
    begin_time       timestamptz
    end_time         timestamptz  -- When nothing of the tenant was left; null before.

While a tenant has a row there, no row is added for it. A transaction that adds rows begins with
`Database.adding`, or with `join_writers` and a statement that looks at `purged_tenants`. The purge
takes the same lock alone before it writes its row, so it misses no transaction that began earlier.

Versions are those of the tenant's settings. They rise when a tenant with the same id is created
again, so a late purge does not delete rows of the new tenant.
"""

from dataclasses import dataclass
from datetime import datetime

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_postgres.audit.store import hide_events
from spawnmesh_postgres.database import Connection, writers_key
from spawnmesh_postgres.statements import load_statements

_SQL = load_statements(__name__)
JOIN_WRITERS = f"select pg_advisory_xact_lock_shared({writers_key('%(tenant_id)s')})"
"""The statement of `join_writers`, for transactions that begin with it."""
GET_PURGE = _SQL["get_purge"]
"""The statement of `get_purge`, for pipelines. It returns a row if the tenant is purged, or was."""
_BLOCK_WRITERS = f"select pg_advisory_xact_lock({writers_key('%(tenant_id)s')})"
_RETRY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Purge:
    """A purge of a tenant. `settings_version` is 0 if the caller named none."""

    settings_version: int
    begin_time: datetime
    end_time: datetime | None = None

    @property
    def is_done(self) -> bool:
        """Return whether nothing of the tenant is left."""
        return self.end_time is not None

    def is_over_for(self, settings_version: int) -> bool:
        """Return whether settings of this version belong to a tenant that was created later."""
        if self.settings_version == 0 or settings_version == 0:
            return self.is_done
        return self.settings_version < settings_version

    def covers(self, settings_version: int) -> bool:
        """Return whether a purge up to this version would add nothing to this one."""
        return settings_version != 0 and self.settings_version > settings_version


def merge_purge(stored: Purge | None, settings_version: int, current_version: int | None) -> int | None:
    """Return the version up to which a tenant is purged by a purge up to `settings_version`.

    `current_version` is that of the tenant's stored settings. Return None if the purge is late: the
    tenant was created again since, or a later purge is known. Version 0 purges in any case.
    """
    if settings_version != 0 and current_version is not None and current_version > settings_version:
        return None
    if stored is None:
        return settings_version
    return None if stored.covers(settings_version) else max(stored.settings_version, settings_version)


async def join_writers(connection: Connection, tenant_id: str) -> None:
    """Keep a purge of the tenant from beginning until the transaction ends.

    The next statement of the transaction sees whether one has begun before.
    """
    await connection.execute(JOIN_WRITERS, {"tenant_id": tenant_id})


async def get_purge(connection: Connection, tenant_id: str) -> Purge | None:
    """Return the purge of the tenant; None if there was none since it was last prepared."""
    row = await (await connection.execute(GET_PURGE, {"tenant_id": tenant_id})).fetchone()
    return None if row is None else Purge(**row)


async def begin_purge(
    connection: Connection, tenant_id: str, settings_version: int, current_version: int | None
) -> bool:
    """Add no row for the tenant from now on. Return False, changing nothing, for a late purge.

    The caller holds the lock of `block_writers` since before it read `current_version`.
    """
    version = merge_purge(await get_purge(connection, tenant_id), settings_version, current_version)
    if version is None:
        return False
    await connection.execute(_SQL["put_purge"], {"tenant_id": tenant_id, "settings_version": version})
    return True


async def block_writers(connection: Connection, tenant_id: str) -> None:
    """Wait for transactions that add rows for the tenant, and block new ones until commit."""
    await connection.execute(_BLOCK_WRITERS, {"tenant_id": tenant_id})


async def lock_purge(connection: Connection, tenant_id: str, settings_version: int) -> bool:
    """Return whether the purge goes on. If so, it cannot end before this transaction does."""
    parameters = {"tenant_id": tenant_id, "settings_version": settings_version}
    return await (await connection.execute(_SQL["lock_purge"], parameters)).fetchone() is not None


async def finish_purge(connection: Connection, tenant_id: str) -> None:
    """Record that no row of the tenant is left. Rows stay refused until it is prepared anew."""
    await connection.execute(_SQL["finish_purge"], {"tenant_id": tenant_id})


async def end_earlier_purge(connection: Connection, tenant_id: str, settings_version: int) -> None:
    """Forget the purge of an earlier tenant with this id, so that rows can be added again, and hide
    its audit events from the new one.

    No purge of the tenant begins until the transaction ends. Waits for a page of a late purge.
    Raises CONFLICT while a purge of these settings or newer ones is under way, and after it.
    """
    await join_writers(connection, tenant_id)
    purge = await get_purge(connection, tenant_id)
    if purge is None:
        return
    if purge.is_over_for(settings_version):
        await connection.execute(_SQL["delete_purge"], {"tenant_id": tenant_id})
        await hide_events(connection, tenant_id)
    elif purge.is_done:
        raise MeshError(
            Reason.CONFLICT, "these settings belong to a tenant that was purged; create the tenant anew"
        )
    else:
        raise being_purged()


def being_purged() -> MeshError:
    """Build the error for a tenant that is prepared while it is being purged."""
    return MeshError(
        Reason.CONFLICT,
        "the tenant is being purged; call again once the purge is done",
        retry_after_seconds=_RETRY_SECONDS,
    )
