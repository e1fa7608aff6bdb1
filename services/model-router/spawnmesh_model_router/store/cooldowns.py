"""Cooldowns in the database."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from spawnmesh_postgres.database import ALL_TENANTS, Connection, switch_tenant
from spawnmesh_postgres.rows import Row
from spawnmesh_postgres.statements import load_statements
from spawnmesh_postgres.tenant_purges import get_purge, join_writers

from spawnmesh_model_router.domain.cooldown import FORGET_AFTER, Cooldown, CooldownTarget, Scope, extend
from spawnmesh_model_router.domain.reasons import FailoverReason, parse_reason

_SQL = load_statements(__name__)

COOLDOWNS_CHANNEL = "model_router_cooldowns"


@dataclass(frozen=True, slots=True)
class CooldownRecord:
    """A cooldown and the last failure of its target, counted or not."""

    cooldown: Cooldown
    last_failure_time: datetime


def extend_record(
    before: CooldownRecord | None,
    target: CooldownTarget,
    reason: FailoverReason,
    now: datetime,
    retry_after: timedelta | None,
) -> CooldownRecord:
    """Return the record after one more failure, which causes a cooldown of the target."""
    existing = before.cooldown if before is not None else None
    cooldown = extend(existing, reason, now, retry_after, scope=target.scope, audience=target.audience)
    if cooldown is None:
        raise ValueError(f"{reason} causes no cooldown of a {target.scope}")
    return CooldownRecord(cooldown, now)


async def list_cooldowns(connection: Connection) -> dict[CooldownTarget, CooldownRecord]:
    """Return the cooldowns that the scope of the transaction sees: with ALL_TENANTS those of all
    tenants and of each tenant.

    Also returns expired ones whose failure count still matters.
    """
    cursor = await connection.execute(_SQL["list_cooldowns"], {"forget_after": FORGET_AFTER})
    return dict(map(_parse, await cursor.fetchall()))


async def get_cooldown(connection: Connection, target: CooldownTarget) -> CooldownRecord | None:
    """Return the cooldown of the target."""
    cursor = await connection.execute(_SQL["get_cooldown"], _key(target))
    row = await cursor.fetchone()
    return _parse(row)[1] if row is not None else None


async def extend_cooldown(connection: Connection, target: CooldownTarget, record: CooldownRecord) -> None:
    """Save the cooldown. A stored deadline that is later stays. Saves nothing for a purged tenant.

    Deletes what is forgotten of the tenant, or of all tenants. Changes the scope of the transaction
    to that of the target, as the other statements that write do.
    """
    await _enter_scope(connection, target)
    key = _key(target)
    if target.tenant_id:
        await join_writers(connection, target.tenant_id)
        if await get_purge(connection, target.tenant_id):
            return
    forgotten = {"tenant_id": key["tenant_id"], "forget_after": FORGET_AFTER}
    await connection.execute(_SQL["delete_forgotten"], forgotten)
    await connection.execute(
        _SQL["extend_cooldown"],
        {
            **key,
            "until_time": record.cooldown.until,
            "failure_count": record.cooldown.failures,
            "reason": record.cooldown.reason.value,
            "counted_time": record.cooldown.failed_at,
            "last_failure_time": record.last_failure_time,
        },
    )


async def end_cooldown(connection: Connection, target: CooldownTarget, begin_time: datetime) -> None:
    """Delete the cooldown, unless its target failed at or after `begin_time`."""
    await _enter_scope(connection, target)
    await connection.execute(_SQL["end_cooldown"], {**_key(target), "begin_time": begin_time})


async def delete_cooldown(connection: Connection, target: CooldownTarget) -> None:
    """Delete the cooldown, whenever its target failed."""
    await _enter_scope(connection, target)
    await connection.execute(_SQL["delete_cooldown"], _key(target))


async def notify_cooldowns(connection: Connection) -> None:
    """Make all replicas read the cooldowns again once the transaction has committed."""
    await connection.execute(_SQL["notify_cooldowns"])


async def _enter_scope(connection: Connection, target: CooldownTarget) -> None:
    """Enter the scope that may write the row: a tenant's cooldown is a row of the tenant."""
    await switch_tenant(connection, target.tenant_id or ALL_TENANTS)


def _key(target: CooldownTarget) -> dict[str, str]:
    return {
        "tenant_id": target.tenant_id or ALL_TENANTS,
        "scope": target.scope.value,
        "target": target.name,
    }


def _parse(row: Row) -> tuple[CooldownTarget, CooldownRecord]:
    tenant_id = "" if row["tenant_id"] == ALL_TENANTS else row["tenant_id"]
    target = CooldownTarget(Scope(row["scope"]), row["target"], tenant_id)
    cooldown = Cooldown(
        scope=target.scope,
        until=row["until_time"],
        failures=row["failure_count"],
        reason=parse_reason(row["reason"]),
        failed_at=row["counted_time"],
        audience=target.audience,
    )
    return target, CooldownRecord(cooldown, row["last_failure_time"])
