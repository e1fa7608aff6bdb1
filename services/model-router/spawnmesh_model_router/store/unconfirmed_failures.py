"""The last failure of each target that no other tenant has confirmed, in the database.

All statements need the scope ALL_TENANTS.
"""

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_model_router.domain.audience import TenantFailure
from spawnmesh_model_router.domain.cooldown import CooldownTarget, Scope
from spawnmesh_model_router.domain.reasons import parse_reason

_SQL = load_statements(__name__)


async def lock(connection: Connection) -> None:
    """Wait for other replicas that write failures, and block them until the transaction ends."""
    await connection.execute(_SQL["lock_failures"])


async def list_failures(connection: Connection) -> dict[CooldownTarget, TenantFailure]:
    """Return the unconfirmed failures by target. The target names no tenant."""
    cursor = await connection.execute(_SQL["list_failures"])
    return {
        CooldownTarget(Scope(row["scope"]), row["target"]): TenantFailure(
            row["failed_tenant_id"], parse_reason(row["reason"]), row["failure_time"]
        )
        for row in await cursor.fetchall()
    }


async def put_failure(connection: Connection, target: CooldownTarget, failure: TenantFailure) -> None:
    """Store the failure. It replaces the one before."""
    await connection.execute(
        _SQL["put_failure"],
        {
            "scope": target.scope.value,
            "target": target.name,
            "failed_tenant_id": failure.tenant_id,
            "reason": failure.reason.value,
            "failure_time": failure.time,
        },
    )


async def delete_failure(connection: Connection, target: CooldownTarget) -> None:
    """Delete the failure of the target, if there is one."""
    await connection.execute(_SQL["delete_failure"], {"scope": target.scope.value, "target": target.name})
