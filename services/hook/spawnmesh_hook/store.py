"""Plugins, deliveries and heard events in the database."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_hook.domain.plugins import FailurePolicy, Grant, HookKind, Plugin

_SQL = load_statements("spawnmesh_hook")


@dataclass(frozen=True, slots=True)
class Delivery:
    """One call of one plugin; `error` is empty or says why it failed, without content."""

    plugin: str
    hook: HookKind
    session_id: str
    run_id: str
    start_time: datetime
    latency: timedelta
    decision: str
    error: str


async def put_plugin(connection: Connection, tenant_id: str, plugin: Plugin) -> None:
    """Adds the plugin, or replaces the one of its name, which keeps its place among equals."""
    await connection.execute(
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
        },
    )


async def list_plugins(connection: Connection, tenant_id: str) -> list[Plugin]:
    """All plugins of the tenant, highest priority first, ties by registration."""
    cursor = await connection.execute(_SQL["list_plugins"], {"tenant_id": tenant_id})
    return [_plugin(row) for row in await cursor.fetchall()]


async def plugins_for_hook(connection: Connection, tenant_id: str, hook: HookKind) -> list[Plugin]:
    """Those registered for the hook, highest priority first, ties by registration."""
    cursor = await connection.execute(_SQL["plugins_for_hook"], {"tenant_id": tenant_id, "hook": hook.value})
    return [_plugin(row) for row in await cursor.fetchall()]


async def remove_plugin(connection: Connection, tenant_id: str, name: str) -> None:
    """Removes the plugin if there is one of that name."""
    await connection.execute(_SQL["remove_plugin"], {"tenant_id": tenant_id, "name": name})


async def add_delivery(connection: Connection, tenant_id: str, delivery: Delivery) -> None:
    """Logs a call."""
    await connection.execute(
        _SQL["add_delivery"],
        {
            "tenant_id": tenant_id,
            "delivery_id": new_id(IdKind.DELIVERY),
            "plugin": delivery.plugin,
            "hook": delivery.hook.value,
            "session_id": delivery.session_id,
            "run_id": delivery.run_id,
            "start_time": delivery.start_time,
            "latency": delivery.latency,
            "decision": delivery.decision,
            "error": delivery.error,
        },
    )


async def list_deliveries(connection: Connection, tenant_id: str, session_id: str, limit: int) -> list[Delivery]:
    """The newest calls first, of one session or, where `session_id` is empty, of all."""
    name = "list_deliveries_of_session" if session_id else "list_deliveries"
    cursor = await connection.execute(_SQL[name], {"tenant_id": tenant_id, "session_id": session_id, "limit": limit})
    return [Delivery(**{**row, "hook": HookKind(row["hook"])}) for row in await cursor.fetchall()]


async def add_heard_event(connection: Connection, tenant_id: str, event_key: str, plugin: str) -> None:
    """Remembers that the plugin has heard of the event."""
    await connection.execute(
        _SQL["add_heard_event"], {"tenant_id": tenant_id, "event_key": event_key, "plugin": plugin}
    )


async def list_heard(connection: Connection, tenant_id: str, event_key: str) -> set[str]:
    """The names of the plugins that have heard of the event, removed ones included."""
    cursor = await connection.execute(_SQL["list_heard"], {"tenant_id": tenant_id, "event_key": event_key})
    return {row["plugin"] for row in await cursor.fetchall()}


def _plugin(row: dict[str, Any]) -> Plugin:
    return Plugin(
        name=row["name"],
        endpoint=row["endpoint"],
        hooks=tuple(HookKind(hook) for hook in row["hooks"]),
        priority=row["priority"],
        timeout=row["timeout"],
        failure_policy=FailurePolicy(row["failure_policy"]),
        grants=tuple(Grant(grant) for grant in row["grants"]),
    )
