"""What becomes of ended sessions with time: archived, deleted, forgotten; and of what grows while they live: pruned."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from spawnmesh_postgres.database import Database

from spawnmesh_session.domain import retention_of
from spawnmesh_session.operations.delete import Delete
from spawnmesh_session.store import ended, tenants

REQUEST_MEMORY = timedelta(hours=24)  # The contract promises it for what names a request: of spawns and of messages.
_PAGE = 200
_ROWS = 1000  # Deleted at once, of each kind.


@dataclass(frozen=True, slots=True)
class Retain:
    """Applies a tenant's retention, as its settings are now, to what is due by the database's clock. One cut off goes on after the interval."""

    database: Database
    delete: Delete
    interval: timedelta

    async def run(self, tenant_id: str) -> int:
        """One bounded part; returns how many rows it touched. It comes again after the interval, or at once where there is more to do."""
        async with self.database.transaction(tenant_id) as connection:
            claimed = await tenants.claim_retention(connection, tenant_id, self.interval)
            if claimed is None:
                return 0
            keep = retention_of(claimed["settings"])
            to_archive = await ended.list_to_archive(connection, tenant_id, keep.archive_after, _PAGE)
            archived = await ended.archive(connection, tenant_id, to_archive)
        deleted = 0 if keep.delete_after is None else await self._delete(tenant_id, keep.delete_after)
        pruned = await self._prune(tenant_id, max(keep.archive_after, REQUEST_MEMORY))
        if archived == _PAGE or deleted == _PAGE or max(pruned) == _ROWS:
            async with self.database.transaction(tenant_id) as connection:
                await tenants.hasten_retention(connection, tenant_id)
        return archived + deleted + sum(pruned)

    async def _delete(self, tenant_id: str, delete_after: timedelta) -> int:
        """Deletes at most a page; parents right behind the last of their children."""
        count, freed = 0, False
        place: tuple[datetime | str, str] | None = ended.FIRST_PLACE
        while count < _PAGE and place is not None:
            async with self.database.transaction(tenant_id) as connection:
                page = await ended.list_to_delete(connection, tenant_id, delete_after, place, _PAGE)
                gone = await self.delete.mark(connection, tenant_id, page.without_children[: _PAGE - count])
            count += len(gone)
            freed = freed or bool(gone)
            place = page.next_place
            if place is None and freed:
                place, freed = ended.FIRST_PLACE, False
        return count

    async def _prune(self, tenant_id: str, age: timedelta) -> tuple[int, int, int]:
        async with self.database.transaction(tenant_id) as connection:
            return (
                await ended.prune(connection, tenant_id, "prune_events", age, _ROWS),
                await ended.prune(connection, tenant_id, "prune_messages", age, _ROWS),
                await ended.prune(connection, tenant_id, "forget_deleted", REQUEST_MEMORY, _ROWS),
            )
