"""The tenant's plugins: register, list, remove."""

from spawnmesh_postgres.database import Database

from spawnmesh_hook import store
from spawnmesh_hook.domain.endpoints import parse_endpoint
from spawnmesh_hook.domain.plugins import Plugin, missing_grant
from spawnmesh_hook.endpoint_guard import EndpointGuard
from spawnmesh_hook.errors import GrantMissing


class PluginRegistry:
    """Keeps the plugins of every tenant."""

    def __init__(self, database: Database, guard: EndpointGuard) -> None:
        self._database = database
        self._guard = guard

    async def register(self, tenant_id: str, plugin: Plugin) -> None:
        """Adds or replaces the plugin. Raises GrantMissing or EndpointNotAllowed."""
        missing = missing_grant(plugin)
        if missing is not None:
            raise GrantMissing(plugin.name, missing)
        await self._guard.addresses_of(parse_endpoint(plugin.endpoint))
        async with self._database.transaction(tenant_id) as connection:
            await store.put_plugin(connection, tenant_id, plugin)

    async def list(self, tenant_id: str) -> list[Plugin]:
        """All of them, highest priority first, ties by registration."""
        async with self._database.transaction(tenant_id) as connection:
            return await store.list_plugins(connection, tenant_id)

    async def remove(self, tenant_id: str, name: str) -> None:
        """Removes it if it is there."""
        async with self._database.transaction(tenant_id) as connection:
            await store.remove_plugin(connection, tenant_id, name)
