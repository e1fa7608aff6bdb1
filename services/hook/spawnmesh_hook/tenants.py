"""The life of a tenant: made ready with its settings, and purged in pages that may each be repeated."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database
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

        CONFLICT while it is being purged, and for settings of the tenant that was. A purge of the tenant before the one with these is over: the
        tenant is created anew once nothing is left of that one.
        """
        async with self.database.transaction(tenant_id) as connection:
            parameters = {"tenant_id": tenant_id, "settings_version": settings_version}
            await connection.execute(_SQL["bar_tenant"], parameters)
            await connection.execute(_SQL["forget_purge"], parameters)
            purge = await (await connection.execute(_SQL["get_purge"], parameters)).fetchone()
            if purge is not None:
                raise _purged(is_done=purge["is_done"])
            if settings_version > 0:
                await connection.execute(_SQL["put_settings"], {**parameters, "mask_secrets": mask_secrets})
            return await store.settings_version(connection, tenant_id) or 0

    async def purge(self, tenant_id: str, settings_version: int) -> Purged:
        """Removes up to some pages of rows. From its beginning on nothing is added for the tenant.

        Removes nothing of a tenant with settings newer than this version, also where that is made ready meanwhile; 0 is whatever tenant there
        is.
        """
        parameters = {"tenant_id": tenant_id, "settings_version": settings_version}
        async with self.database.transaction(tenant_id) as connection:
            await connection.execute(_SQL["bar_tenant"], parameters)
            if await (await connection.execute(_SQL["mark_purged"], parameters)).fetchone() is None:
                return Purged(True, 0, 0)
        plugins = rows = pages = 0
        for table in _TABLES:
            while True:
                if pages == _PAGES_PER_CALL:
                    return Purged(False, plugins, rows)
                gone = await self._purge_page(table, parameters)
                if gone is None:
                    return Purged(True, plugins, rows)
                pages += gone > 0
                rows += gone
                plugins += gone if table == "plugins" else 0
                if gone < PAGE_ROWS:
                    break
        async with self.database.transaction(tenant_id) as connection:
            if await lock_purge(connection, parameters):
                for statement in ("forget_settings", "end_purge"):
                    await connection.execute(_SQL[statement], parameters)
        return Purged(True, plugins, rows)

    async def _purge_page(self, table: str, parameters: dict[str, Any]) -> int | None:
        """How many rows went; None where the purge is over."""
        async with self.database.transaction(parameters["tenant_id"]) as connection:
            if not await lock_purge(connection, parameters):
                return None
            page = {**parameters, "limit": PAGE_ROWS}
            gone = (await connection.execute(_SQL[f"purge_{table}"], page)).rowcount
            if table == "plugins" and gone:
                await store.announce_plugins_changed(connection)
        if table == "plugins":
            self.directory.forget()
        return gone


async def lock_purge(connection: Connection, parameters: Mapping[str, Any]) -> bool:
    """Whether what the tenant has is to be purged still; that does not change until the transaction ends."""
    return await (await connection.execute(_SQL["lock_purge"], parameters)).fetchone() is not None


def _purged(*, is_done: bool) -> MeshError:
    """The refusal of settings while the tenant goes, and of those of one that has gone."""
    if is_done:
        return MeshError(Reason.CONFLICT, "these settings are of a tenant that was purged; create the tenant anew")
    return MeshError(Reason.CONFLICT, "the tenant is being purged; call again once it is done", retry_after_seconds=5.0)
