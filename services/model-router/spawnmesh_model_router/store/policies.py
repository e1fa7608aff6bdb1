"""Tenants' policies in the database, and the tables with rows of tenants."""

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements
from spawnmesh_postgres.tenant_tables import TenantTables

from spawnmesh_model_router.domain.images import BlindModelPolicy
from spawnmesh_model_router.domain.policy import Limits, TenantPolicy

_SQL = load_statements(__name__)

POLICIES_CHANNEL = "model_router_policies"

# Cooldowns for all tenants belong to `*`, which is no tenant. So do unconfirmed failures, which
# name the failed tenant for a few minutes.
TENANT_TABLES = TenantTables(
    rows=(
        "budget_periods",
        "budget_reservations",
        "cooldowns",
        "failure_hours",
        "spend_days",
        "unconfirmed_failures",
    ),
    settings="tenant_policies",
)


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
        trace_content=row["trace_content"],
        tenant_class=row["tenant_class"],
    )


async def put_policy(
    connection: Connection, tenant_id: str, settings_version: int, policy: TenantPolicy
) -> None:
    """Store the policy if its version is newer, and notify all replicas."""
    parameters = {
        "tenant_id": tenant_id,
        "settings_version": settings_version,
        "blind_model_policy": policy.blind_model_policy or "",
        "stop_after_side_effects": policy.stop_after_side_effects,
        "max_tries": policy.max_tries,
        "requests_per_minute": policy.limits.requests_per_minute,
        "tokens_per_minute": policy.limits.tokens_per_minute,
        "spend_micros_per_day": policy.limits.spend_micros_per_day,
        "trace_content": policy.trace_content,
        "tenant_class": policy.tenant_class,
    }
    await connection.execute(_SQL["put_policy"], parameters)
    await notify_policies(connection)


async def notify_policies(connection: Connection) -> None:
    """Notify all replicas, when the transaction commits, that a policy changed or is deleted."""
    await connection.execute(_SQL["notify_policies"])
