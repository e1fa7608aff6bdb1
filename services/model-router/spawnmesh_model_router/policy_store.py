"""Tenants' policies and what they have used up, in the database."""

from typing import Any

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_model_router.domain.images import BlindModelPolicy
from spawnmesh_model_router.domain.policy import Limits, Spent, TenantPolicy

_SQL = load_statements("spawnmesh_model_router")

POLICIES_CHANNEL = "model_router_policies"


async def read_policy(connection: Connection, tenant_id: str) -> TenantPolicy:
    """The tenant's policy; the operator's for one that nothing was told of."""
    cursor = await connection.execute(_SQL["read_policy"], {"tenant_id": tenant_id})
    row = await cursor.fetchone()
    return _policy(row) if row is not None else TenantPolicy()


async def write_policy(connection: Connection, tenant_id: str, settings_version: int, policy: TenantPolicy) -> int:
    """Keeps the policy if its version is newer, and gives the version that holds."""
    parameters = {
        "tenant_id": tenant_id,
        "settings_version": settings_version,
        "blind_model_policy": policy.blind_model_policy or "",
        "stop_after_side_effects": policy.stop_after_side_effects,
        "max_tries": policy.max_tries,
        "requests_per_minute": policy.limits.requests_per_minute,
        "tokens_per_minute": policy.limits.tokens_per_minute,
        "spend_micros_per_day": policy.limits.spend_micros_per_day,
    }
    cursor = await connection.execute(_SQL["write_policy"], parameters)
    row = await cursor.fetchone()
    await connection.execute(_SQL["announce_policies"])
    return int(row["settings_version"]) if row is not None else settings_version


async def enter_prepared(connection: Connection, tenant_id: str, settings_version: int) -> None:
    """Lets the tenant be counted for again, and no purge of it begin until the transaction ends.

    CONFLICT while it is being purged, and for settings of the tenant that was. A purge of the tenant before the one with these is over: the
    tenant is created anew once nothing is left of that one.
    """
    parameters = {"tenant_id": tenant_id, "settings_version": settings_version}
    await connection.execute(_SQL["bar_tenant"], parameters)
    await connection.execute(_SQL["forget_purge"], parameters)
    purge = await (await connection.execute(_SQL["get_purge"], parameters)).fetchone()
    if purge is None:
        return
    if purge["is_done"]:
        raise MeshError(Reason.CONFLICT, "these settings are of a tenant that was purged; create the tenant anew")
    raise MeshError(Reason.CONFLICT, "the tenant is being purged; call again once it is done", retry_after_seconds=5.0)


async def begin_purge(connection: Connection, tenant_id: str, settings_version: int) -> int | None:
    """Has nothing kept or counted for the tenant any more, and removes its policy, in every replica; how many rows that were.

    None, with nothing done, where the tenant has newer settings than those of the one to purge.
    """
    parameters = {"tenant_id": tenant_id, "settings_version": settings_version}
    await connection.execute(_SQL["bar_tenant"], parameters)
    if await (await connection.execute(_SQL["mark_purged"], parameters)).fetchone() is None:
        return None
    gone = (await connection.execute(_SQL["purge_policies"], parameters)).rowcount
    await connection.execute(_SQL["announce_policies"])
    return gone


async def lock_purge(connection: Connection, tenant_id: str, settings_version: int) -> bool:
    """Whether what the tenant has is to be purged still; that does not change until the transaction ends."""
    parameters = {"tenant_id": tenant_id, "settings_version": settings_version}
    return await (await connection.execute(_SQL["lock_purge"], parameters)).fetchone() is not None


async def purge_periods(connection: Connection, tenant_id: str, limit: int) -> int:
    """Removes up to `limit` rows of what was counted; how many those were."""
    cursor = await connection.execute(_SQL["purge_periods"], {"tenant_id": tenant_id, "limit": limit})
    row = await cursor.fetchone()
    return int(row["row_count"]) if row is not None else 0


async def end_purge(connection: Connection, tenant_id: str) -> None:
    """Nothing is left of the tenant."""
    await connection.execute(_SQL["end_purge"], {"tenant_id": tenant_id})


async def take_requests(connection: Connection, tenant_id: str, count: int) -> Spent:
    """Counts requests of the tenant, and gives what it has used up with the last of them."""
    cursor = await connection.execute(_SQL["take_requests"], {"tenant_id": tenant_id, "request_count": count})
    row = await cursor.fetchone()
    if row is None:  # The tenant was purged: nothing of it is counted.
        return Spent(0, 0, 0, 0.0, 0.0)
    if row["request_count"] == count:
        await connection.execute(_SQL["forget_periods"], {"tenant_id": tenant_id})
    return Spent(**row)


async def charge(connection: Connection, tenant_id: str, token_count: int, spend_micros: int) -> None:
    """Adds what a call has used up."""
    parameters = {"tenant_id": tenant_id, "token_count": token_count, "spend_micros": spend_micros}
    await connection.execute(_SQL["charge"], parameters)


def _policy(row: dict[str, Any]) -> TenantPolicy:
    chosen = row["blind_model_policy"]
    return TenantPolicy(
        blind_model_policy=BlindModelPolicy(chosen) if chosen else None,
        stop_after_side_effects=row["stop_after_side_effects"],
        max_tries=row["max_tries"],
        limits=Limits(row["requests_per_minute"], row["tokens_per_minute"], row["spend_micros_per_day"]),
    )
