"""Bounds the time that a run waits for a plugin whose failure policy is CLOSED."""

from dataclasses import dataclass

from spawnmesh_postgres.database import Database

from spawnmesh_hook.domain.call_failures import CallFailure
from spawnmesh_hook.domain.errors import PluginFailed
from spawnmesh_hook.domain.plugins import HookKind, Plugin, has_bounded_wait
from spawnmesh_hook.store import plugin_waits


@dataclass(frozen=True, slots=True)
class PluginWaits:
    """Measures waits by the database clock, over restarts and replicas.

    A plugin without a `max_wait` costs nothing here.
    """

    database: Database

    async def answered(self, tenant_id: str, plugin: Plugin, hook: HookKind, run_id: str) -> None:
        """End the run's wait for the plugin."""
        if has_bounded_wait(plugin, hook):
            async with self.database.pipelined(tenant_id) as connection:
                await plugin_waits.end_wait(connection, tenant_id, run_id, plugin)

    async def failed(
        self, tenant_id: str, plugin: Plugin, hook: HookKind, run_id: str, failure: CallFailure
    ) -> PluginFailed:
        """Return the error of the dispatch.

        It is final if the plugin gave no answer and the run has waited for the plugin's `max_wait`.
        """
        max_wait = plugin.max_wait
        if max_wait is None or not has_bounded_wait(plugin, hook):
            return PluginFailed(plugin.name, hook, failure)
        if not failure.is_transient:
            await self.answered(tenant_id, plugin, hook, run_id)
            return PluginFailed(plugin.name, hook, failure)
        async with self.database.adding(tenant_id) as connection:
            waited = await plugin_waits.measure_wait(connection, tenant_id, run_id, plugin)
        return PluginFailed(plugin.name, hook, failure, exceeded=max_wait if waited >= max_wait else None)
