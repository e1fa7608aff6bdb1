"""Tenants' policies in the database."""

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_model_router.domain.images import BlindModelPolicy
from spawnmesh_model_router.domain.policy import Limits, TenantPolicy

_SQL = load_statements(__name__)

POLICIES_CHANNEL = "model_router_policies"


async def get_policy(connection: Connection, tenant_id: str) -> TenantPolicy | None:
    """Return the tenant's policy; None for a tenant that is not prepared."""
    cursor = await connection.execute(_SQL["get_policy"], {"tenant_id": tenant_id})
    row = await cursor.fetchone()
    if row is None:
        return None
    blind_model_policy = row["blind_model_policy"]
    return TenantPolicy(
        blind_model_policy=BlindModelPolicy(blind_model_policy) if blind_model_policy else None,
        stop_after_side_effects=row["stop_after_side_effects"],
        max_tries=row["max_tries"],
        limits=Limits(row["requests_per_minute"], row["tokens_per_minute"], row["spend_micros_per_day"]),
    )


async def get_settings_version(connection: Connection, tenant_id: str) -> int | None:
    """Return the version of the tenant's policy, or None for a tenant without one."""
    row = await (await connection.execute(_SQL["get_settings_version"], {"tenant_id": tenant_id})).fetchone()
    return None if row is None else int(row["settings_version"])


async def set_policy(
    connection: Connection, tenant_id: str, settings_version: int, policy: TenantPolicy
) -> int:
    """Store the policy if its version is newer, and notify all replicas.

    Return the version that holds.
    """
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
    cursor = await connection.execute(_SQL["set_policy"], parameters)
    row = await cursor.fetchone()
    await connection.execute(_SQL["notify_policies"])
    return int(row["settings_version"]) if row is not None else settings_version


async def delete_policy(connection: Connection, tenant_id: str) -> int:
    """Delete the tenant's policy, and notify all replicas. Return the number of deleted rows."""
    cursor = await connection.execute(_SQL["delete_policy"], {"tenant_id": tenant_id})
    await connection.execute(_SQL["notify_policies"])
    return cursor.rowcount
