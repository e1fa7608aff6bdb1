"""Cooldowns in the database."""

from dataclasses import dataclass
from datetime import datetime

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_model_router.domain.cooldown import Cooldown, CooldownTarget, Scope
from spawnmesh_model_router.domain.reasons import FailoverReason

_SQL = load_statements(__name__)

MESH_TENANT = "mesh"
"""The tenant of all rows of the table: a cooldown concerns every tenant."""

COOLDOWNS_CHANNEL = "model_router_cooldowns"


@dataclass(frozen=True, slots=True)
class CooldownRecord:
    """A cooldown and the last failure of its target, counted or not."""

    cooldown: Cooldown
    last_failure_time: datetime


async def list_cooldowns(connection: Connection) -> dict[CooldownTarget, CooldownRecord]:
    """Return all cooldowns, also expired ones whose failure count still matters."""
    cursor = await connection.execute(_SQL["list_cooldowns"], {"tenant_id": MESH_TENANT})
    records = {}
    for row in await cursor.fetchall():
        scope = Scope(row["scope"])
        cooldown = Cooldown(
            scope=scope,
            until=row["until_time"],
            failures=row["failure_count"],
            reason=_reason(row["reason"]),
            failed_at=row["counted_time"],
        )
        records[CooldownTarget(scope, row["target"])] = CooldownRecord(cooldown, row["last_failure_time"])
    return records


async def extend_cooldown(connection: Connection, target: CooldownTarget, record: CooldownRecord) -> None:
    """Save the cooldown. A stored deadline that is later stays."""
    await connection.execute(
        _SQL["extend_cooldown"],
        {
            "tenant_id": MESH_TENANT,
            "scope": target.scope.value,
            "target": target.name,
            "until_time": record.cooldown.until,
            "failure_count": record.cooldown.failures,
            "reason": record.cooldown.reason.value,
            "counted_time": record.cooldown.failed_at,
            "last_failure_time": record.last_failure_time,
        },
    )


async def end_cooldown(connection: Connection, target: CooldownTarget, begin_time: datetime) -> None:
    """Delete the cooldown, unless its target failed at or after `begin_time`."""
    parameters = {
        "tenant_id": MESH_TENANT,
        "scope": target.scope.value,
        "target": target.name,
        "begin_time": begin_time,
    }
    await connection.execute(_SQL["end_cooldown"], parameters)


async def delete_cooldown(connection: Connection, target: CooldownTarget) -> bool:
    """Delete the cooldown, whenever its target failed. Return whether there was one."""
    parameters = {"tenant_id": MESH_TENANT, "scope": target.scope.value, "target": target.name}
    cursor = await connection.execute(_SQL["delete_cooldown"], parameters)
    return cursor.rowcount > 0


async def notify_cooldowns(connection: Connection) -> None:
    """Make all replicas read the cooldowns again once the transaction has committed."""
    await connection.execute(_SQL["notify_cooldowns"])


def _reason(name: str) -> FailoverReason:
    """Return the reason; UNKNOWN for one that only a newer replica knows, during a rolling
    upgrade.
    """
    return FailoverReason(name) if name in FailoverReason.__members__ else FailoverReason.UNKNOWN
