"""Plugins and deliveries in the database."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_hook.domain.plugins import FailurePolicy, Grant, HookKind, Plugin

PLUGINS_CHANGED_CHANNEL = "hook_plugins"

_SQL = load_statements("spawnmesh_hook")


@dataclass(frozen=True, slots=True)
class Delivery:
    """One call of one plugin; `error` is empty or says why it failed, without content."""

    delivery_id: str
    plugin: str
    hook: HookKind
    session_id: str
    run_id: str
    start_time: datetime
    latency: timedelta
    decision: str
    error: str
    attempt: int


@dataclass(frozen=True, slots=True)
class DeliveryQuery:
    """Which deliveries are asked for: empty texts do not narrow. `before_time` and `before_id` are the last row of the page before."""

    session_id: str
    run_id: str
    plugin: str
    decision: str
    start_time: datetime
    end_time: datetime
    before_time: datetime
    before_id: str


async def put_plugin(connection: Connection, tenant_id: str, plugin: Plugin) -> Plugin:
    """Adds the plugin, or replaces the one of its name, which keeps its place among equals; as it is afterwards."""
    cursor = await connection.execute(
        _SQL["put_plugin"],
        {
            "tenant_id": tenant_id,
            "name": plugin.name,
            "endpoint": plugin.endpoint,
            "hooks": [hook.value for hook in plugin.hooks],
            "priority": plugin.priority,
            "timeout": plugin.timeout,
            "failure_policy": plugin.failure_policy.value,
            "grants": [grant.value for grant in plugin.grants],
            "max_concurrent_calls": plugin.max_concurrent_calls,
        },
    )
    row = await cursor.fetchone()
    if row is None:
        raise RuntimeError("a plugin that was written is not there")
    return _plugin(row)


async def list_plugins(connection: Connection, tenant_id: str) -> tuple[list[Plugin], bool]:
    """All plugins of the tenant, highest priority first, ties by registration; and whether a decision of its plugins is kept or being made."""
    cursor = await connection.execute(_SQL["list_plugins"], {"tenant_id": tenant_id})
    rows = await cursor.fetchall()
    return [_plugin(row) for row in rows if row["name"] is not None], rows[0]["has_decisions"]


async def settings_version(connection: Connection, tenant_id: str) -> int | None:
    """Which settings hold for the tenant; None for one that was not made ready."""
    row = await (await connection.execute(_SQL["settings_version"], {"tenant_id": tenant_id})).fetchone()
    return None if row is None else int(row["settings_version"])


async def masks_secrets(database: Database, tenant_id: str) -> bool:
    """Whether the tenant's content is shown without secrets, as it holds now; one round trip."""
    (row,) = await database.call(tenant_id, _SQL["masks_secrets"], {})
    return bool(row["masks_secrets"])


async def set_paused(connection: Connection, tenant_id: str, name: str, *, paused: bool) -> Plugin:
    """The plugin as it is afterwards; NOT_FOUND where there is none."""
    cursor = await connection.execute(_SQL["set_paused"], {"tenant_id": tenant_id, "name": name, "paused": paused})
    row = await cursor.fetchone()
    if row is None:
        raise not_found("plugin", name)
    return _plugin(row)


async def remove_plugin(connection: Connection, tenant_id: str, name: str) -> None:
    """Removes the plugin if there is one of that name, with what it was still to be told."""
    for statement in ("remove_plugin", "hold_events", "remove_tellings"):
        await connection.execute(_SQL[statement], {"tenant_id": tenant_id, "name": name})


async def remove_left_out(connection: Connection, tenant_id: str, name: str) -> bool:
    """Removes the plugin that a bundled one of its name has taken the place of, which is told what was still to be; whether there was one."""
    cursor = await connection.execute(_SQL["remove_plugin"], {"tenant_id": tenant_id, "name": name})
    return cursor.rowcount > 0


async def announce_plugins_changed(connection: Connection) -> None:
    """Has every replica look again, when the transaction commits."""
    await connection.execute(_SQL["announce_plugins_changed"], {"channel": PLUGINS_CHANGED_CHANNEL})


async def add_delivery(connection: Connection, tenant_id: str, delivery: Delivery) -> None:
    """Logs a call."""
    await connection.execute(
        _SQL["add_delivery"],
        {
            "tenant_id": tenant_id,
            "delivery_id": delivery.delivery_id,
            "plugin": delivery.plugin,
            "hook": delivery.hook.value,
            "session_id": delivery.session_id,
            "run_id": delivery.run_id,
            "start_time": delivery.start_time,
            "latency": delivery.latency,
            "decision": delivery.decision,
            "error": delivery.error,
            "attempt": delivery.attempt,
        },
    )


async def list_deliveries(connection: Connection, tenant_id: str, query: DeliveryQuery, limit: int) -> list[Delivery]:
    """The newest calls first."""
    parameters = {
        "tenant_id": tenant_id,
        "limit": limit,
        "session_id": query.session_id,
        "run_id": query.run_id,
        "plugin": query.plugin,
        "decision": query.decision,
        "start_time": query.start_time,
        "end_time": query.end_time,
        "before_time": query.before_time,
        "before_id": query.before_id,
    }
    cursor = await connection.execute(_SQL["list_deliveries"], parameters)
    return [Delivery(**{**row, "hook": HookKind(row["hook"])}) for row in await cursor.fetchall()]


async def delete_old(connection: Connection, kept_for: timedelta, limit: int) -> int:
    """In the scope of every tenant: deletes at most `limit` rows of each kind that are older; how many rows that were."""
    deleted = 0
    for kind in ("deliveries", "decisions", "run_revisions", "revision_keys", "events"):
        cursor = await connection.execute(_SQL[f"delete_old_{kind}"], {"kept_for": kept_for, "limit": limit})
        deleted += cursor.rowcount
    return deleted


def _plugin(row: dict[str, Any]) -> Plugin:
    return Plugin(
        name=row["name"],
        endpoint=row["endpoint"],
        hooks=tuple(HookKind(hook) for hook in row["hooks"]),
        priority=row["priority"],
        timeout=row["timeout"],
        failure_policy=FailurePolicy(row["failure_policy"]),
        grants=tuple(Grant(grant) for grant in row["grants"]),
        max_concurrent_calls=row["max_concurrent_calls"],
        paused=row["paused"],
        generation=row["generation"],
    )
