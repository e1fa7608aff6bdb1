"""What holds for tenants, and the removal of all that one has."""

from dataclasses import dataclass

from spawnmesh_postgres.database import Database

from spawnmesh_transcript import tenant_store
from spawnmesh_transcript.domain.policy import TenantPolicy
from spawnmesh_transcript.domain.refusals import being_purged

PAGE_ROWS = 2_000
"""Rows deleted in one transaction: what is locked meanwhile is not for long."""

_PAGES_PER_CALL = 40


class Policies:
    """The policies as this process knows them. One may be out of date: whoever acts on it has the database say so in the same transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, TenantPolicy] = {}

    def of(self, tenant_id: str) -> TenantPolicy:
        """The policy as far as it is known."""
        return self._known.get(tenant_id, TenantPolicy())

    async def refresh(self, tenant_id: str) -> TenantPolicy:
        """The policy that holds, read anew."""
        async with self._database.transaction(tenant_id) as connection:
            policy = await tenant_store.read_policy(connection, tenant_id)
        self.learn(tenant_id, policy)
        return policy

    def learn(self, tenant_id: str, policy: TenantPolicy) -> None:
        """This one holds."""
        if policy == TenantPolicy():
            self._known.pop(tenant_id, None)
        else:
            self._known[tenant_id] = policy


@dataclass(frozen=True, slots=True)
class Purged:
    """What one call removed, and whether nothing is left."""

    is_done: bool
    transcript_count: int
    row_count: int


async def prepare_tenant(database: Database, tenant_id: str, policy: TenantPolicy) -> TenantPolicy:
    """The policy that holds afterwards: this one, or a newer one. Raises CONFLICT while the tenant is being purged.

    A purge of the tenant that was there before is over: the tenant is created anew once nothing is left of that one.
    """
    async with database.transaction(tenant_id) as connection:
        is_open = await tenant_store.enter_tenant(connection, tenant_id)
        if not is_open and not await tenant_store.pass_purge(connection, tenant_id, policy.settings_version):
            raise being_purged()
        await tenant_store.put_tenant(connection, tenant_id, policy)
        return await tenant_store.read_policy(connection, tenant_id)


async def purge_tenant(database: Database, tenant_id: str, settings_version: int = 0) -> Purged:
    """Removes up to some pages of rows. From its beginning on nothing begins in the tenant, until nothing is left of it.

    Removes nothing of a tenant with settings newer than this version, also where that is made ready meanwhile; 0 is whatever tenant there is.
    """
    async with database.transaction(tenant_id) as connection:
        if not await tenant_store.begin_purge(connection, tenant_id, settings_version):
            return Purged(True, 0, 0)
    transcripts = rows = pages = 0
    while pages < _PAGES_PER_CALL:
        before = rows
        for table in tenant_store.PURGED_TABLES:
            while pages < _PAGES_PER_CALL:
                async with database.transaction(tenant_id) as connection:
                    if not await tenant_store.lock_purge(connection, tenant_id, settings_version):
                        return Purged(True, transcripts, rows)  # Another call has ended it.
                    gone = await tenant_store.purge_rows(connection, tenant_id, table, row_count=PAGE_ROWS)
                pages += gone.row_count > 0
                transcripts += gone.transcript_count
                rows += gone.row_count
                if gone.row_count < PAGE_ROWS:
                    break
        if rows == before:  # A whole round found nothing: neither did what was under way leave any.
            async with database.transaction(tenant_id) as connection:
                if await tenant_store.lock_purge(connection, tenant_id, settings_version):
                    await tenant_store.end_purge(connection, tenant_id)
            return Purged(True, transcripts, rows)
    return Purged(False, transcripts, rows)
