"""The life of a tenant: made ready with its settings, and purged in pages that may each be repeated."""

from dataclasses import dataclass

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_hook import store
from spawnmesh_hook.directory import PluginDirectory

_SQL = load_statements("spawnmesh_hook")
# Plugins first: then nobody is called any more. What an observer is to be told before the event that it is about.
_TABLES = ("plugins", "tellings", "observed_events", "decisions", "run_revisions", "revision_keys", "deliveries")
PAGE_ROWS = 2_000
"""Rows deleted in one transaction: what is locked meanwhile is not for long."""
_PAGES_PER_CALL = 20


@dataclass(frozen=True, slots=True)
class Purged:
    """What one call removed, and whether nothing is left."""

    is_done: bool
    plugin_count: int
    row_count: int


@dataclass(frozen=True, slots=True)
class Tenants:
    """Tenants as far as this service knows them: what holds for them, and those that were purged."""

    database: Database
    directory: PluginDirectory

    async def prepare(self, tenant_id: str, settings_version: int, *, mask_secrets: bool) -> int:
        """Lets the tenant be written for again. The version of the settings that holds: these, unless as new ones did already or this is 0.

        CONFLICT while it is being purged.
        """
        async with self.database.transaction(tenant_id) as connection:
            parameters = {"tenant_id": tenant_id}
            await connection.execute(_SQL["bar_tenant"], parameters)
            await connection.execute(_SQL["forget_purge"], parameters)
            if await (await connection.execute(_SQL["is_purging"], parameters)).fetchone() is not None:
                raise MeshError(
                    Reason.CONFLICT, "the tenant is being purged; call again once it is done", retry_after_seconds=5.0
                )
            if settings_version > 0:
                settings = {"settings_version": settings_version, "mask_secrets": mask_secrets}
                await connection.execute(_SQL["put_settings"], {**parameters, **settings})
            return await store.settings_version(connection, tenant_id) or 0

    async def purge(self, tenant_id: str) -> Purged:
        """Removes up to some pages of rows. From its beginning on nothing is added for the tenant."""
        async with self.database.transaction(tenant_id) as connection:
            for statement in ("bar_tenant", "mark_purged"):
                await connection.execute(_SQL[statement], {"tenant_id": tenant_id})
        plugins = rows = pages = 0
        for table in _TABLES:
            while True:
                if pages == _PAGES_PER_CALL:
                    return Purged(False, plugins, rows)
                gone = await self._purge_page(tenant_id, table)
                pages += gone > 0
                rows += gone
                plugins += gone if table == "plugins" else 0
                if gone < PAGE_ROWS:
                    break
        async with self.database.transaction(tenant_id) as connection:
            for statement in ("forget_settings", "end_purge"):
                await connection.execute(_SQL[statement], {"tenant_id": tenant_id})
        return Purged(True, plugins, rows)

    async def _purge_page(self, tenant_id: str, table: str) -> int:
        async with self.database.transaction(tenant_id) as connection:
            parameters = {"tenant_id": tenant_id, "limit": PAGE_ROWS}
            gone = (await connection.execute(_SQL[f"purge_{table}"], parameters)).rowcount
            if table == "plugins" and gone:
                await store.announce_plugins_changed(connection)
        if table == "plugins":
            self.directory.forget()
        return gone
