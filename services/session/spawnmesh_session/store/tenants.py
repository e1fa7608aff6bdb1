"""Tenants and their settings."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from psycopg.types.json import Jsonb
from spawnmesh_postgres.database import ALL_TENANTS, Connection, Database, switch_tenant
from spawnmesh_postgres.rows import Row
from spawnmesh_postgres.statements import load_statements

from spawnmesh_session.domain.spawns import spawn_limits_of
from spawnmesh_session.domain.tenants import (
    DeletedTenant,
    DeletionStep,
    Tenant,
    TenantDeletion,
    require_tenant,
)
from spawnmesh_session.store.rows import MAX_LIST_BYTES, PendingRow, time_of

_SQL = load_statements(__name__)

CALL_LIMITS_CHANNEL = "call_limits_changed"
"""The channel of PostgreSQL on which each change of a tenant's call limits is notified."""

_LIMITS_PAGE = 1000


def deletion_of(tenant_id: str, row: Row) -> TenantDeletion:
    """Convert a row of `tenant_deletions`, or the JSON of one."""
    request_time = time_of(row["request_time"])
    if request_time is None:
        raise ValueError("a deletion has no request_time")
    return TenantDeletion(
        tenant_id=tenant_id,
        step=DeletionStep(row["step"]),
        request_time=request_time,
        end_time=time_of(row["end_time"]),
        killed_run_count=row["killed_run_count"],
        deleted_session_count=row["deleted_session_count"],
        deleted_transcript_count=row["deleted_transcript_count"],
        deleted_object_count=row["deleted_object_count"],
        stalled_by=row["stalled_by"],
        settings_version=row["settings_version"],
    )


def tenant_of(row: Row) -> Tenant | DeletedTenant:
    """Convert a row of get_tenant."""
    tenant_id: str = row["tenant_id"]
    deletion = deletion_of(tenant_id, row["deletion"]) if row["deletion"] else None
    if row["settings"] is None:
        if deletion is None:
            raise ValueError("a tenant has neither settings nor a deletion")
        return DeletedTenant(tenant_id, deletion)
    return Tenant(
        tenant_id=tenant_id,
        display_name=row["display_name"],
        settings=row["settings"],
        settings_version=row["settings_version"],
        ready=row["ready"],
        create_time=row["create_time"],
        deletion=deletion,
    )


def _columns(tenant_id: str, display_name: str, settings: dict[str, Any]) -> dict[str, Any]:
    limits = spawn_limits_of(settings)
    return {
        "tenant_id": tenant_id,
        "display_name": display_name,
        "settings": Jsonb(settings),
        "max_running_run_count": limits.max_running_run_count,
        "max_queued_run_count": limits.max_queued_run_count,
        "run_weight": limits.run_weight,
    }


async def insert_tenant(
    connection: Connection,
    tenant_id: str,
    display_name: str,
    settings: dict[str, Any],
    *,
    settings_version: int,
) -> None:
    """Insert the tenant unless it exists. It is not ready."""
    values = {**_columns(tenant_id, display_name, settings), "settings_version": settings_version}
    await connection.execute(_SQL["insert_tenant"], values)


async def get_tenant(connection: Connection, tenant_id: str) -> Tenant | DeletedTenant | None:
    """Return the tenant, or the report of its deletion; None if there is neither."""
    row = await (await connection.execute(_SQL["get_tenant"], {"tenant_id": tenant_id})).fetchone()
    return tenant_of(row) if row else None


async def get_existing_tenant(connection: Connection, tenant_id: str) -> Tenant:
    """Return the tenant, ready or not. Raise UNKNOWN_TENANT if there is none."""
    return require_tenant(tenant_id, await get_tenant(connection, tenant_id))


async def send_settings(connection: Connection, tenant_id: str) -> PendingRow[dict[str, Any]]:
    """Send the read of the tenant's settings; in a pipeline this takes no round trip."""
    cursor = await connection.execute(_SQL["get_settings"], {"tenant_id": tenant_id})
    return PendingRow(cursor, lambda row: dict(row["settings"]))


async def enter_tenant(connection: Connection, tenant_id: str) -> Tenant | DeletedTenant | None:
    """Return what `get_tenant` returns, and keep deletions of the tenant from beginning.

    This holds until the transaction ends, so a later deletion finds and removes what it creates.
    """
    return await (await send_enter(connection, tenant_id)).fetch()


async def send_enter(connection: Connection, tenant_id: str) -> PendingRow[Tenant | DeletedTenant]:
    """Send what `enter_tenant` does; in a pipeline this takes no round trip."""
    await join_beginners(connection, tenant_id)
    return PendingRow(await connection.execute(_SQL["get_tenant"], {"tenant_id": tenant_id}), tenant_of)


async def join_beginners(connection: Connection, tenant_id: str) -> None:
    """Keep deletions of the tenant from beginning until the transaction ends.

    The next statement of the transaction sees whether one has begun before.
    """
    await connection.execute(_SQL["join_beginners"], {"tenant_id": tenant_id})


async def mark_tenant_ready(connection: Connection, tenant_id: str) -> None:
    """Open the tenant for spawns."""
    await connection.execute(_SQL["mark_tenant_ready"], {"tenant_id": tenant_id})


async def lock_tenant(connection: Connection, tenant_id: str) -> Tenant:
    """Lock a tenant that the transaction has entered, so that no deletion of it has begun."""
    row = await (await connection.execute(_SQL["lock_tenant"], {"tenant_id": tenant_id})).fetchone()
    if row is None:
        raise RuntimeError("the tenant that was entered does not exist")
    return require_tenant(tenant_id, tenant_of(row))


async def update_tenant(
    connection: Connection, current: Tenant, display_name: str, settings: dict[str, Any]
) -> bool:
    """Replace the name and the settings, and raise the version by one.

    Return False, and write nothing, if the tenant is at another version than `current`.
    """
    values = {
        **_columns(current.tenant_id, display_name, settings),
        "settings_version": current.settings_version,
    }
    return await (await connection.execute(_SQL["update_tenant"], values)).fetchone() is not None


@dataclass(frozen=True, slots=True)
class TenantsPage:
    """Tenants by id.

    The next page begins after `next_after_id`, which is empty on the last page.
    """

    tenants: list[Tenant | DeletedTenant]
    next_after_id: str


async def list_tenants(database: Database, *, after_id: str, page_size: int) -> TenantsPage:
    """Return a page of the tenants whose creation is complete.

    The page has fewer tenants if their settings are large. It takes two round trips: one for the
    ids, in the scope of every tenant, and one for each tenant's row, in its own.
    """
    values = {"after_id": after_id, "page_size": page_size, "max_bytes": MAX_LIST_BYTES}
    (listed,) = await database.transact(ALL_TENANTS, (_SQL["list_tenants"], values))
    if not listed:
        return TenantsPage([], "")
    ids = [str(row["tenant_id"]) for row in listed]
    has_more = listed[0]["found_count"] > len(listed)
    async with database.pipelined(ids[0]) as connection:
        pending = [await _send_get(connection, tenant_id) for tenant_id in ids]
    # A tenant that was deleted meanwhile may be gone.
    found = [tenant for row in pending if (tenant := await row.fetch()) is not None]
    return TenantsPage(found, ids[-1] if has_more else "")


async def _send_get(connection: Connection, tenant_id: str) -> PendingRow[Tenant | DeletedTenant]:
    await switch_tenant(connection, tenant_id)
    return PendingRow(await connection.execute(_SQL["get_tenant"], {"tenant_id": tenant_id}), tenant_of)


async def list_tenants_to_retain(connection: Connection) -> list[str]:
    """Return at most 32 tenants with a due pass of the retention, in the scope of every tenant."""
    rows = await (await connection.execute(_SQL["list_tenants_to_retain"])).fetchall()
    return [row["tenant_id"] for row in rows]


async def count_tenants_to_retain(connection: Connection) -> int:
    """Return the number of tenants with a due pass of the retention, of every tenant."""
    row = await (await connection.execute(_SQL["count_tenants_to_retain"])).fetchone()
    return int(row["overdue"]) if row else 0


async def read_call_limits(connection: Connection) -> dict[str, dict[str, Any]]:
    """Return the call limits of the tenants that have some, in the scope of every tenant."""
    found: dict[str, dict[str, Any]] = {}
    after_id = ""
    while True:
        values = {"after_id": after_id, "limit": _LIMITS_PAGE}
        rows = await (await connection.execute(_SQL["list_call_limits"], values)).fetchall()
        found.update((row["tenant_id"], row["call_limits"]) for row in rows)
        if len(rows) < _LIMITS_PAGE:
            return found
        after_id = rows[-1]["tenant_id"]


async def notify_of_call_limits(connection: Connection) -> None:
    """Wake the readers of every replica when the transaction commits."""
    await connection.execute(_SQL["notify_of_call_limits"])


async def claim_retention(
    connection: Connection, tenant_id: str, again_in: timedelta
) -> dict[str, Any] | None:
    """Claim a due pass of the retention, and return the tenant's settings.

    The next pass is due after `again_in`. Return None if another worker has claimed this pass.
    """
    values = {"tenant_id": tenant_id, "again_in": again_in}
    row = await (await connection.execute(_SQL["claim_retention"], values)).fetchone()
    return row["settings"] if row else None


async def make_retention_due(connection: Connection, tenant_id: str) -> None:
    """Make the next pass of the retention due now."""
    await connection.execute(_SQL["make_retention_due"], {"tenant_id": tenant_id})


async def delete_tenant(connection: Connection, tenant_id: str) -> None:
    """Remove the tenant's own row."""
    await connection.execute(_SQL["delete_tenant"], {"tenant_id": tenant_id})
