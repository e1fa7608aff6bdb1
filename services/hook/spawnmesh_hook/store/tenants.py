"""The settings of tenants, and the tables with their rows."""

from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.statements import load_statements
from spawnmesh_postgres.tenant_tables import TenantTables

from spawnmesh_hook.domain.plugins import PluginLimits

_SQL = load_statements(__name__)

# Plugins and webhooks first, so that none is called any more. Jobs go before their events.
TENANT_TABLES = TenantTables(
    rows=(
        "plugins",
        "webhooks",
        "jobs",
        "webhook_deliveries",
        "observed_events",
        "decisions",
        "run_revisions",
        "revision_keys",
        "plugin_waits",
        "allowed_spawns",
        "deliveries",
    ),
    settings="tenants",
    work="tenant_work",
)


async def masks_secrets(database: Database, tenant_id: str) -> bool:
    """Return whether plugins see the tenant's content with masked secrets. Takes one round trip."""
    async with database.pipelined(tenant_id) as connection:
        cursor = await connection.execute(_SQL["masks_secrets"], {"tenant_id": tenant_id})
    row = await cursor.fetchone()
    return row is not None and bool(row["mask_secrets"])


async def put_settings(
    connection: Connection,
    tenant_id: str,
    settings_version: int,
    *,
    mask_secrets: bool,
    plugin_limits: PluginLimits,
) -> None:
    """Store the settings, unless the tenant has settings of this version or a newer one."""
    parameters = {
        "settings_version": settings_version,
        "mask_secrets": mask_secrets,
        "max_plugin_count": plugin_limits.max_plugin_count,
        "max_gate_count": plugin_limits.max_gate_count,
    }
    await connection.execute(_SQL["put_settings"], {"tenant_id": tenant_id, **parameters})
