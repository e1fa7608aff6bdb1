"""The tenant's plugins: register, list, pause, resume, remove."""

import ssl

from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.settings import ProcessSettings

from spawnmesh_hook import store
from spawnmesh_hook.bundled import BundledPlugins
from spawnmesh_hook.directory import PluginDirectory
from spawnmesh_hook.domain.endpoints import parse_endpoint
from spawnmesh_hook.domain.plugins import Plugin, missing_grant
from spawnmesh_hook.endpoint_guard import EndpointGuard
from spawnmesh_hook.errors import EndpointNotAllowed, EndpointNotReached, GrantMissing, NameIsBundled, unknown_tenant
from spawnmesh_hook.lookups import NotLookedUp
from spawnmesh_hook.reach import check_reachable, mesh_tls
from spawnmesh_hook.webhooks import Webhooks


class PluginRegistry:
    """Keeps the plugins of every tenant; the bundled ones are only shown."""

    def __init__(
        self,
        database: Database,
        directory: PluginDirectory,
        bundled: BundledPlugins,
        guard: EndpointGuard,
        settings: ProcessSettings,
        webhook_tls: ssl.SSLContext,
        webhooks: Webhooks,
    ) -> None:
        self._database = database
        self._directory = directory
        self._bundled = bundled
        self._guard = guard
        self._settings = settings
        self._webhook_tls = webhook_tls
        self._webhooks = webhooks

    async def register(self, tenant_id: str, plugin: Plugin, *, allow_unreachable: bool) -> tuple[Plugin, str]:
        """Adds or replaces the plugin; as it is afterwards, and the secret of a webhook.

        Raises NameIsBundled, UNKNOWN_TENANT, GrantMissing, EndpointNotAllowed or EndpointNotReached.
        """
        if self._bundled.named(plugin.name):
            raise NameIsBundled(plugin.name)
        async with self._database.transaction(tenant_id) as connection:
            if await store.settings_version(connection, tenant_id) is None:
                raise unknown_tenant()
        missing = missing_grant(plugin)
        if missing is not None:
            raise GrantMissing(plugin.name, *missing)
        endpoint = parse_endpoint(plugin.endpoint)
        secret = ""
        if endpoint.is_webhook:
            secret = self._webhooks.secret(tenant_id, plugin) or ""
            if not secret:
                raise EndpointNotAllowed("is a webhook, and this service has no key to sign calls with")
        try:
            addresses = await self._guard.addresses_of(endpoint, tenant_id)
        except NotLookedUp as error:
            if not allow_unreachable:
                raise EndpointNotReached(f"its name was not looked up: {error}") from None
        else:
            if not allow_unreachable:
                context = self._webhook_tls if endpoint.is_webhook else mesh_tls(self._settings)
                await check_reachable(endpoint, addresses, context)
        async with self._database.transaction(tenant_id) as connection:
            registered = await store.put_plugin(connection, tenant_id, plugin)
            await store.announce_plugins_changed(connection)
        self._directory.forget()
        return registered, secret

    async def list(self, tenant_id: str) -> tuple[Plugin, ...]:
        """All of them, highest priority first, ties by registration."""
        self._directory.forget()
        return await self._directory.all(tenant_id)

    async def get(self, tenant_id: str, name: str) -> Plugin:
        """One of them; NOT_FOUND where there is none."""
        for plugin in await self.list(tenant_id):
            if plugin.name == name:
                return plugin
        raise not_found("plugin", name)

    async def set_paused(self, tenant_id: str, name: str, *, paused: bool) -> Plugin:
        """The plugin as it is afterwards. Raises NameIsBundled, and NOT_FOUND."""
        if self._bundled.serves(tenant_id, name):
            raise NameIsBundled(name)
        async with self._database.transaction(tenant_id) as connection:
            plugin = await store.set_paused(connection, tenant_id, name, paused=paused)
            await store.announce_plugins_changed(connection)
        self._directory.forget()
        return plugin

    async def remove(self, tenant_id: str, name: str) -> None:
        """Removes it if it is there. Raises NameIsBundled where the name is the operator's and the tenant has none of its own behind it."""
        async with self._database.transaction(tenant_id) as connection:
            if not self._bundled.serves(tenant_id, name):
                await store.remove_plugin(connection, tenant_id, name)
            elif not await store.remove_left_out(connection, tenant_id, name):
                raise NameIsBundled(name)
            await store.announce_plugins_changed(connection)
        self._directory.forget()
