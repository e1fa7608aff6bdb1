"""Cooldowns in the database."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_model_router.domain.cooldown import Cooldown, Scope
from spawnmesh_model_router.domain.reasons import FailoverReason

_SQL = load_statements("spawnmesh_model_router")

MESH_TENANT = "mesh"
"""Holds the rows that concern every tenant."""

COOLDOWNS_CHANNEL = "model_router_cooldowns"


class Target(NamedTuple):
    """What rests: `provider/model`, `provider/<fingerprint of a credential>` or `provider`, by scope."""

    scope: Scope
    name: str

    @property
    def provider(self) -> str:
        """Whose it is."""
        return self.name.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Rest:
    """A cooldown with the last failure of its target, counted or not."""

    cooldown: Cooldown
    last_failure_time: datetime


async def list_cooldowns(connection: Connection) -> dict[Target, Rest]:
    """All cooldowns, also those that are over but whose count still matters."""
    cursor = await connection.execute(_SQL["list_cooldowns"], {"tenant_id": MESH_TENANT})
    return {_target(row): _rest(row) for row in await cursor.fetchall()}


async def extend_cooldown(connection: Connection, target: Target, rest: Rest) -> None:
    """Saves the rest. One that already ends later stays as it is."""
    await connection.execute(
        _SQL["extend_cooldown"],
        {
            "tenant_id": MESH_TENANT,
            "scope": target.scope.value,
            "target": target.name,
            "until_time": rest.cooldown.until,
            "failure_count": rest.cooldown.failures,
            "reason": rest.cooldown.reason.value,
            "counted_time": rest.cooldown.failed_at,
            "last_failure_time": rest.last_failure_time,
        },
    )


async def end_cooldown(connection: Connection, target: Target, begin_time: datetime) -> None:
    """Forgets the rest, unless its target failed after `begin_time`."""
    await connection.execute(
        _SQL["end_cooldown"],
        {"tenant_id": MESH_TENANT, "scope": target.scope.value, "target": target.name, "begin_time": begin_time},
    )


async def clear_cooldown(connection: Connection, target: Target) -> bool:
    """Forgets the rest whenever its target failed. Whether there was one."""
    parameters = {"tenant_id": MESH_TENANT, "scope": target.scope.value, "target": target.name}
    cursor = await connection.execute(_SQL["clear_cooldown"], parameters)
    return cursor.rowcount > 0


async def announce_cooldowns(connection: Connection) -> None:
    """Has all replicas read the cooldowns again once the transaction has committed."""
    await connection.execute(_SQL["announce_cooldowns"])


def _target(row: dict[str, Any]) -> Target:
    return Target(Scope(row["scope"]), row["target"])


def _rest(row: dict[str, Any]) -> Rest:
    cooldown = Cooldown(
        scope=Scope(row["scope"]),
        until=row["until_time"],
        failures=row["failure_count"],
        reason=_reason(row["reason"]),
        failed_at=row["counted_time"],
    )
    return Rest(cooldown, row["last_failure_time"])


def _reason(name: str) -> FailoverReason:
    """During an upgrade a newer replica may know more reasons."""
    return FailoverReason(name) if name in FailoverReason.__members__ else FailoverReason.UNKNOWN
