"""The data that this service keeps of tenants, for TenantParticipantService."""

from dataclasses import dataclass

from spawnmesh.hook.v1.plugin_limits_pb2 import PluginLimits as PluginLimitsProto
from spawnmesh.tenancy.v1.participant_settings_pb2 import ParticipantSettings
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.tenant_participant import TenantData

from spawnmesh_hook.domain.plugins import PluginLimits
from spawnmesh_hook.operations.plugin_cache import PluginCache
from spawnmesh_hook.store import plugins, tenants


@dataclass(frozen=True)
class HookTenants(TenantData):
    """Plugins with their number, the results of their calls, and whether content is masked."""

    plugin_cache: PluginCache
    tables = tenants.TENANT_TABLES

    async def put_settings(
        self, connection: Connection, tenant_id: str, settings_version: int, settings: ParticipantSettings
    ) -> None:
        await tenants.put_settings(
            connection,
            tenant_id,
            settings_version,
            mask_secrets=settings.transcripts.mask_secrets,
            plugin_limits=_plugin_limits(settings.plugins),
        )

    async def announce_purge(self, connection: Connection) -> None:
        await plugins.notify_plugins_changed(connection)

    def forget(self, tenant_id: str) -> None:
        self.plugin_cache.invalidate()


def _plugin_limits(limits: PluginLimitsProto) -> PluginLimits:
    """Return the limits. 0 means the default."""
    defaults = PluginLimits()
    return PluginLimits(
        limits.max_plugin_count or defaults.max_plugin_count, limits.max_gate_count or defaults.max_gate_count
    )
