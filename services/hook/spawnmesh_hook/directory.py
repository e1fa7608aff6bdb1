"""Who listens to what: the plugins of each tenant, at hand, and whether they have decided anything."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from spawnmesh_core.clock import Monotonic, monotonic_seconds
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.listener import Listener

from spawnmesh_hook import store
from spawnmesh_hook.bundled import BundledPlugins
from spawnmesh_hook.domain.plugins import WITHOUT_CONTENT, HookKind, Plugin, Viewer, in_order
from spawnmesh_hook.store import PLUGINS_CHANGED_CHANNEL

# A notification can be lost with its connection; a plugin is missed for no longer than this.
_KEPT_SECONDS = 2.0
_MOST_TENANTS = 10_000


@dataclass(frozen=True, slots=True)
class _Kept:
    plugins: tuple[Plugin, ...]
    has_decisions: bool
    until: float


class PluginDirectory:
    """Keeps what it has read until something changes, or for two seconds."""

    def __init__(self, database: Database, bundled: BundledPlugins, monotonic: Monotonic = monotonic_seconds) -> None:
        self._database = database
        self._bundled = bundled
        self._monotonic = monotonic
        self._kept: dict[str, _Kept] = {}
        self._change_count = 0
        self._told_of: set[tuple[str, str]] = set()

    async def all(self, tenant_id: str) -> tuple[Plugin, ...]:
        """Highest priority first, of equals the bundled ones first, then by registration; paused ones among them.

        A name is there once: where the operator has come to run a plugin that is called like one of the tenant's own, that one is left out.
        """
        return (await self._look(tenant_id)).plugins

    async def has_decisions(self, tenant_id: str) -> bool:
        """Whether any draft of the tenant was decided by plugins, or is being: where none was, no decision has to be looked for."""
        return (await self._look(tenant_id)).has_decisions

    async def active(self, tenant_id: str, hook: HookKind) -> Sequence[Plugin]:
        """Those to call for the hook, in order."""
        return [plugin for plugin in await self.all(tenant_id) if hook in plugin.hooks and not plugin.paused]

    async def viewers(self, tenant_id: str, hook: HookKind, plugins: Sequence[Plugin]) -> Sequence[Viewer]:
        """The plugins with how they see content. Whether secrets are masked is looked up now, not kept: it holds from the moment it is changed.

        Costs nothing where none of them sees content.
        """
        sees = hook not in WITHOUT_CONTENT and any(plugin.sees_content for plugin in plugins)
        masks = sees and await store.masks_secrets(self._database, tenant_id)
        return [Viewer(plugin, masks_secrets=masks) for plugin in plugins]

    async def active_hooks(self, tenant_id: str) -> list[HookKind]:
        """The hooks that anybody listens to."""
        listened = {hook for plugin in await self.all(tenant_id) if not plugin.paused for hook in plugin.hooks}
        return [hook for hook in HookKind if hook in listened]

    def forget(self) -> None:
        """Something has changed."""
        self._change_count += 1
        self._kept.clear()

    async def _look(self, tenant_id: str) -> _Kept:
        kept = self._kept.get(tenant_id)
        if kept is not None and kept.until > self._monotonic():
            return kept
        change_count = self._change_count
        async with self._database.transaction(tenant_id) as connection:
            registered, has_decisions = await store.list_plugins(connection, tenant_id)
        plugins = self._merged(tenant_id, registered)
        kept = _Kept(plugins, has_decisions, self._monotonic() + _KEPT_SECONDS)
        if change_count == self._change_count:
            if len(self._kept) >= _MOST_TENANTS:
                self._kept.clear()
            self._kept[tenant_id] = kept
        return kept

    def _merged(self, tenant_id: str, registered: Sequence[Plugin]) -> tuple[Plugin, ...]:
        bundled = self._bundled.of(tenant_id)
        taken = {plugin.name for plugin in bundled}
        left_out = {(tenant_id, plugin.name) for plugin in registered if plugin.name in taken}
        for _, name in left_out - self._told_of:
            structlog.get_logger().warning("plugin_left_out_for_a_bundled_one", tenant=tenant_id, plugin=name)
        self._told_of |= left_out
        return in_order(bundled, [plugin for plugin in registered if plugin.name not in taken])


@asynccontextmanager
async def kept_fresh(directory: PluginDirectory, listener: Listener) -> AsyncIterator[None]:
    """Has the directory look again whenever a replica says that plugins have changed, until the block ends."""

    async def listen() -> None:
        with listener.subscription(PLUGINS_CHANGED_CHANNEL) as changed:
            while True:
                if await changed.wait(_KEPT_SECONDS):
                    directory.forget()

    task = asyncio.create_task(listen(), name="plugins changed")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
