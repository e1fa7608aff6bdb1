"""A cache of each tenant's plugins and webhooks, and of whether the tenant has decisions."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from spawnmesh_core.clock import Monotonic, monotonic_seconds
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.listener import Listener

from spawnmesh_hook.domain.plugins import (
    HELD_WHILE_PAUSED,
    WITHOUT_CONTENT,
    ContentAccess,
    HookKind,
    Plugin,
    in_order,
)
from spawnmesh_hook.domain.webhooks import TYPE_OF_HOOK, Webhook
from spawnmesh_hook.store import plugins, tenants, webhooks
from spawnmesh_hook.store.bundled_plugins import BundledPlugins

# A notification can be lost with its connection. The cache is never older than this.
_TTL_SECONDS = 2.0
_MAX_TENANTS = 10_000


@dataclass(frozen=True, slots=True)
class _CacheEntry:
    plugins: tuple[Plugin, ...]
    webhooks: tuple[Webhook, ...]
    has_decisions: bool
    expires_at: float


class PluginCache:
    """Caches what it reads until plugins or webhooks change, at most for two seconds."""

    def __init__(
        self, database: Database, bundled: BundledPlugins, monotonic: Monotonic = monotonic_seconds
    ) -> None:
        self._database = database
        self._bundled = bundled
        self._monotonic = monotonic
        self._cache: dict[str, _CacheEntry] = {}
        self._change_count = 0
        self._shadowed: set[tuple[str, str]] = set()

    async def all(self, tenant_id: str) -> tuple[Plugin, ...]:
        """Return the plugins, paused ones too, highest priority first.

        Among equal priorities bundled plugins come first, then the order is that of registration. A
        bundled plugin hides the tenant's own plugin of the same name.
        """
        return (await self._read(tenant_id)).plugins

    async def read_all(self, tenant_id: str) -> tuple[Plugin, ...]:
        """Return the plugins as `all` does, but as they are now."""
        self.invalidate()
        return await self.all(tenant_id)

    async def read_one(self, tenant_id: str, name: str) -> Plugin:
        """Return the plugin as it is now. Raises NOT_FOUND."""
        for plugin in await self.read_all(tenant_id):
            if plugin.name == name:
                return plugin
        raise not_found("plugin", name)

    async def has_decisions(self, tenant_id: str) -> bool:
        """Return whether the tenant has any decision about a draft, stored or in progress."""
        return (await self._read(tenant_id)).has_decisions

    async def active(self, tenant_id: str, hook: HookKind) -> Sequence[Plugin]:
        """Return the plugins to call for the hook, in order."""
        return [plugin for plugin in await self.all(tenant_id) if hook in plugin.hooks and not plugin.paused]

    async def observers(self, tenant_id: str, hook: HookKind) -> Sequence[Plugin]:
        """Return the plugins that receive an event, now or when they are resumed."""
        return [
            plugin
            for plugin in await self.all(tenant_id)
            if hook in plugin.hooks and (not plugin.paused or hook in HELD_WHILE_PAUSED)
        ]

    async def subscribers(self, tenant_id: str, hook: HookKind) -> Sequence[Webhook]:
        """Return the webhooks that are sent the events of the hook, paused ones too."""
        event_type = TYPE_OF_HOOK.get(hook)
        if event_type is None:
            return ()
        return [one for one in (await self._read(tenant_id)).webhooks if one.wants(event_type)]

    async def content_access(
        self, tenant_id: str, hook: HookKind, plugins: Sequence[Plugin]
    ) -> Sequence[ContentAccess]:
        """Return how each of the plugins sees content.

        Whether secrets are masked is read now and not cached: a change holds immediately. Nothing
        is read if none of the plugins sees content.
        """
        sees = hook not in WITHOUT_CONTENT and any(plugin.sees_content for plugin in plugins)
        masks = sees and await tenants.masks_secrets(self._database, tenant_id)
        return [ContentAccess(plugin, masks_secrets=masks) for plugin in plugins]

    async def active_hooks(self, tenant_id: str) -> list[HookKind]:
        """Return the hooks that at least one active plugin is registered for."""
        active = {hook for plugin in await self.all(tenant_id) if not plugin.paused for hook in plugin.hooks}
        return [hook for hook in HookKind if hook in active]

    def invalidate(self) -> None:
        """Drop the cache, since plugins or webhooks have changed."""
        self._change_count += 1
        self._cache.clear()

    async def _read(self, tenant_id: str) -> _CacheEntry:
        cached = self._cache.get(tenant_id)
        if cached is not None and cached.expires_at > self._monotonic():
            return cached
        change_count = self._change_count
        async with self._database.pipelined(tenant_id) as connection:
            registered, has_decisions = await plugins.list_plugins(connection, tenant_id)
            subscribed = tuple(await webhooks.list_webhooks(connection, tenant_id))
        merged = self._merge(tenant_id, registered)
        cached = _CacheEntry(merged, subscribed, has_decisions, self._monotonic() + _TTL_SECONDS)
        if change_count == self._change_count:
            if len(self._cache) >= _MAX_TENANTS:
                self._cache.clear()
            self._cache[tenant_id] = cached
        return cached

    def _merge(self, tenant_id: str, registered: Sequence[Plugin]) -> tuple[Plugin, ...]:
        bundled = self._bundled.list_for(tenant_id)
        bundled_names = {plugin.name for plugin in bundled}
        shadowed = {(tenant_id, plugin.name) for plugin in registered if plugin.name in bundled_names}
        for _, name in shadowed - self._shadowed:
            structlog.get_logger().warning("plugin_shadowed_by_bundled", tenant=tenant_id, plugin=name)
        self._shadowed |= shadowed
        return in_order(bundled, [plugin for plugin in registered if plugin.name not in bundled_names])


@asynccontextmanager
async def invalidate_on_change(plugin_cache: PluginCache, listener: Listener) -> AsyncIterator[None]:
    """Invalidate the cache during the block, whenever any replica changes plugins."""

    async def listen() -> None:
        with listener.subscription(plugins.PLUGINS_CHANGED_CHANNEL) as changed:
            while True:
                if await changed.wait(_TTL_SECONDS):
                    plugin_cache.invalidate()

    task = asyncio.create_task(listen(), name="plugins changed")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
