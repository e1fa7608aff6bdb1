"""Plugins that tenants registered."""

from dataclasses import dataclass

from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.rows import Row
from spawnmesh_postgres.statements import load_statements

from spawnmesh_hook.domain.plugins import (
    AWAITED,
    FailurePolicy,
    Grant,
    HookKind,
    Plugin,
    PluginCounts,
    PluginLimits,
)

PLUGINS_CHANGED_CHANNEL = "hook_plugins"

_SQL = load_statements(__name__)


async def write_plugin(
    connection: Connection, tenant_id: str, plugin: Plugin, generation: int | None
) -> Plugin:
    """Change the plugin, which has this generation, or add it if that is None.

    Return the plugin as it is stored. The caller holds the locks of `lock_tenant` and
    `lock_plugin`.
    """
    cursor = await connection.execute(
        _SQL["insert_plugin" if generation is None else "update_plugin"],
        {
            "tenant_id": tenant_id,
            "name": plugin.name,
            "endpoint": plugin.endpoint,
            "hooks": [hook.value for hook in plugin.hooks],
            "priority": plugin.priority,
            "timeout": plugin.timeout,
            "max_wait": plugin.max_wait,
            "failure_policy": plugin.failure_policy.value,
            "grants": [grant.value for grant in plugin.grants],
            "max_concurrent_calls": plugin.max_concurrent_calls,
            "generation": generation,
        },
    )
    row = await cursor.fetchone()
    if row is None:
        raise RuntimeError("a plugin that is locked was changed")
    return _plugin(row)


async def lock_plugin(connection: Connection, tenant_id: str, name: str) -> Plugin | None:
    """Return the plugin, if it exists. It does not change until the transaction ends."""
    parameters = {"tenant_id": tenant_id, "name": name}
    row = await (await connection.execute(_SQL["lock_plugin"], parameters)).fetchone()
    return _plugin(row) if row else None


@dataclass(frozen=True, slots=True)
class LockedTenant:
    """A tenant's limits, and its plugins in number.

    A tenant that was deleted and created again has another `settings_version`.
    """

    limits: PluginLimits
    counts: PluginCounts
    settings_version: int


async def lock_tenant(connection: Connection, tenant_id: str, name: str) -> LockedTenant | None:
    """Return the tenant; None if it is unknown.

    Until the transaction ends, no other one adds or replaces a plugin of the tenant.
    """
    parameters = {"tenant_id": tenant_id, "name": name, "awaited": [hook.value for hook in AWAITED]}
    tenant = await (await connection.execute(_SQL["lock_tenant"], parameters)).fetchone()
    counts = await (await connection.execute(_SQL["count_plugins"], parameters)).fetchone()
    if tenant is None or counts is None:
        return None
    limits = PluginLimits(tenant["max_plugin_count"], tenant["max_gate_count"])
    return LockedTenant(limits, PluginCounts(**counts), tenant["settings_version"])


async def list_plugins(connection: Connection, tenant_id: str) -> tuple[list[Plugin], bool]:
    """Return the tenant's plugins, and whether it has a decision that is stored or in progress.

    The plugins are ordered by priority, highest first, then by registration.
    """
    cursor = await connection.execute(_SQL["list_plugins"], {"tenant_id": tenant_id})
    rows = await cursor.fetchall()
    return [_plugin(row) for row in rows if row["name"] is not None], rows[0]["has_decisions"]


async def set_paused(connection: Connection, tenant_id: str, name: str, *, paused: bool) -> Plugin:
    """Pause or resume the plugin and return it as it is stored. Raises NOT_FOUND."""
    parameters = {"tenant_id": tenant_id, "name": name, "paused": paused}
    row = await (await connection.execute(_SQL["set_paused"], parameters)).fetchone()
    if row is None:
        raise not_found("plugin", name)
    return _plugin(row)


async def delete_plugin(connection: Connection, tenant_id: str, name: str) -> bool:
    """Delete the plugin and return whether there was one."""
    cursor = await connection.execute(_SQL["delete_plugin"], {"tenant_id": tenant_id, "name": name})
    return cursor.rowcount > 0


async def notify_plugins_changed(connection: Connection) -> None:
    """Make every replica read the plugins again when the transaction commits."""
    await connection.execute(_SQL["notify_plugins_changed"], {"channel": PLUGINS_CHANGED_CHANNEL})


def _plugin(row: Row) -> Plugin:
    return Plugin(
        name=row["name"],
        endpoint=row["endpoint"],
        hooks=tuple(HookKind(hook) for hook in row["hooks"]),
        priority=row["priority"],
        timeout=row["timeout"],
        max_wait=row["max_wait"],
        failure_policy=FailurePolicy(row["failure_policy"]),
        grants=tuple(Grant(grant) for grant in row["grants"]),
        max_concurrent_calls=row["max_concurrent_calls"],
        paused=row["paused"],
        generation=row["generation"],
        registration=row["registration"],
    )
