"""The part of a service in the life of a tenant: it prepares, purges and reports the tenant.

The steps are the same in every service. A service gives its `TenantData`: its tables, how it stores
the settings, and what else it keeps of tenants.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from spawnmesh.tenancy.v1.participant_settings_pb2 import ParticipantSettings
from spawnmesh.tenancy.v1.tenant_status_pb2 import StorageUsage

from spawnmesh_postgres import tenant_purges
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.tenant_purges import Purge
from spawnmesh_postgres.tenant_tables import MAX_COUNT, TenantTables

PAGE_ROWS = 2_000
"""Rows deleted in one transaction, so that locks are held for a short time."""

PAGES_PER_CALL = 20
"""Pages of objects and of rows that one call removes."""

OBJECTS = "objects"
"""The kind of what is in a tenant's container, beside the names of tables."""


class TenantObjects(Protocol):
    """The tenants' objects outside of the database, in a container for each tenant.

    `limiter` bounds the removals at the same time: each holds a connection to the database.
    """

    limiter: asyncio.Semaphore

    async def create_container(self, tenant_id: str) -> None:
        """Create the tenant's container unless it exists."""

    async def remove_page(self, tenant_id: str) -> int | None:
        """Remove some objects and return how many.

        Remove the container if it is empty. Return None if there is none any more.
        """

    async def count(self, tenant_id: str, limit: int) -> int | None:
        """Return the number of objects, `limit` at most; None without a container."""


class TenantData:
    """The data that a service keeps of tenants. A service overrides the methods that concern it."""

    tables: TenantTables
    objects: TenantObjects | None = None

    async def put_settings(
        self, connection: Connection, tenant_id: str, settings_version: int, settings: ParticipantSettings
    ) -> None:
        """Store what the service uses, unless the stored version is the same or newer."""
        raise NotImplementedError

    async def get_storage(self, connection: Connection, tenant_id: str) -> StorageUsage | None:
        """Return the storage that the tenant uses, if this service has a quota for it."""
        return None

    async def remember(self, tenant_id: str, settings: ParticipantSettings | None) -> None:
        """Let this process act on the stored settings. They are None if newer ones are stored."""

    async def announce_purge(self, connection: Connection) -> None:
        """Notify other replicas, when the transaction commits, that rows are deleted."""

    def forget(self, tenant_id: str) -> None:
        """Drop what this process remembers of a tenant whose rows were deleted."""


class ParticipationState(StrEnum):
    """UNKNOWN -> PREPARED -> PURGING -> PURGED -> PREPARED."""

    UNKNOWN = "UNKNOWN"
    PREPARED = "PREPARED"
    PURGING = "PURGING"
    PURGED = "PURGED"


def participation_state(purge: Purge | None, settings_version: int | None) -> ParticipationState:
    """Return the state of a tenant with this purge and this version of stored settings."""
    if purge is not None:
        return ParticipationState.PURGED if purge.is_done else ParticipationState.PURGING
    return ParticipationState.UNKNOWN if settings_version is None else ParticipationState.PREPARED


@dataclass(frozen=True, slots=True)
class Participation:
    """The state of a tenant in a service, and the items that the service stores of it.

    A count of MAX_COUNT + 1 means more than MAX_COUNT.
    """

    state: ParticipationState
    settings_version: int
    purge_begin_time: datetime | None
    purge_end_time: datetime | None
    stored: dict[str, int]
    storage: StorageUsage | None


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """The items that a call of `purge` removed, by kind, and whether nothing is left."""

    is_done: bool
    removed: Counter[str] = field(default_factory=Counter)


class TenantParticipant:
    """Prepares, purges and reports tenants of one service."""

    def __init__(self, database: Database, data: TenantData) -> None:
        self._database = database
        self._data = data

    async def prepare(self, tenant_id: str, settings_version: int, settings: ParticipantSettings) -> int:
        """Store the settings unless they are older, and return the version that holds.

        The purge of an earlier tenant with this id is over and is forgotten: a tenant is created
        again only after its purge. Raises CONFLICT while the tenant is being purged, and for
        settings of a tenant that was purged.
        """
        async with self._database.transaction(tenant_id) as connection:
            await tenant_purges.end_earlier_purge(connection, tenant_id, settings_version)
            await self._data.put_settings(connection, tenant_id, settings_version, settings)
            await self._data.tables.put_work(connection, tenant_id)
            current = await self._data.tables.get_settings_version(connection, tenant_id) or 0
        # After the commit: from now on no purge of an earlier tenant removes the container.
        if self._data.objects is not None:
            await self._create_container(tenant_id, self._data.objects)
        await self._data.remember(tenant_id, settings if current == settings_version else None)
        return current

    async def _create_container(self, tenant_id: str, objects: TenantObjects) -> None:
        await objects.create_container(tenant_id)
        async with self._database.transaction(tenant_id) as connection:
            if await tenant_purges.get_purge(connection, tenant_id) is None:
                return
        # A purge began meanwhile. It may have looked for the container before it was created.
        async with objects.limiter, self._database.transaction(tenant_id) as connection:
            if await tenant_purges.lock_purge(connection, tenant_id, 0):
                await objects.remove_page(tenant_id)
        raise tenant_purges.being_purged()

    async def purge(self, tenant_id: str, settings_version: int) -> PurgeResult:
        """Remove up to PAGES_PER_CALL pages. Call again until the result is done.

        From the first call on, no row is added for the tenant. Removes nothing of a tenant with
        settings newer than this version, even if it is prepared meanwhile. Version 0 purges the
        tenant in any case.
        """
        tables = self._data.tables
        async with self._database.transaction(tenant_id) as connection:
            await tenant_purges.block_writers(connection, tenant_id)
            current = await tables.get_settings_version(connection, tenant_id)
            if not await tenant_purges.begin_purge(connection, tenant_id, settings_version, current):
                return PurgeResult(is_done=True)
            await tables.delete_work(connection, tenant_id)
            keys = await tables.read_keys(connection)
        removed: Counter[str] = Counter()
        pages = 0
        objects = self._data.objects
        while objects is not None and pages < PAGES_PER_CALL:
            pages += 1
            async with objects.limiter, self._database.transaction(tenant_id) as connection:
                if not await tenant_purges.lock_purge(connection, tenant_id, settings_version):
                    return PurgeResult(True, removed)
                count = await objects.remove_page(tenant_id)
            if count is None:
                # Do not look for the container again: that takes longer than a page of rows.
                objects = None
            elif count:
                removed[OBJECTS] += count
        is_done = False
        while not is_done and pages < PAGES_PER_CALL:
            pages += 1
            async with self._database.transaction(tenant_id) as connection:
                if not await tenant_purges.lock_purge(connection, tenant_id, settings_version):
                    return PurgeResult(True, removed)
                page = await tables.purge_page(connection, tenant_id, keys, PAGE_ROWS)
                if not page:  # Also no row of a call that was in flight. The settings held for it.
                    page = await tables.delete_settings(connection, tenant_id, keys)
                    await tenant_purges.finish_purge(connection, tenant_id)
                    is_done = True
                await self._data.announce_purge(connection)
            self._data.forget(tenant_id)
            removed += page
        return PurgeResult(is_done, removed)

    async def get_status(self, tenant_id: str) -> Participation:
        """Return what the service knows and stores of the tenant."""
        async with self._database.transaction(tenant_id) as connection:
            purge = await tenant_purges.get_purge(connection, tenant_id)
            current = await self._data.tables.get_settings_version(connection, tenant_id)
            rows = await self._data.tables.count_rows(connection, tenant_id)
            storage = await self._data.get_storage(connection, tenant_id)
        objects = self._data.objects
        count = None if objects is None else await objects.count(tenant_id, MAX_COUNT + 1)
        return Participation(
            state=participation_state(purge, current),
            settings_version=(current or 0) if purge is None else purge.settings_version,
            purge_begin_time=None if purge is None else purge.begin_time,
            purge_end_time=None if purge is None else purge.end_time,
            stored=rows if count is None else {OBJECTS: count, **rows},
            storage=storage if purge is None else None,
        )
