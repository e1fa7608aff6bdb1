"""PurgeTenant. Removes every row of the tenant."""

from dataclasses import dataclass

from spawnmesh.transcript.v1 import tenant_pb2 as pb
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.store import purges as purge_store

PAGE_ROWS = 2_000
"""Rows deleted in one transaction, so that no row stays locked for long."""

_PAGES_PER_CALL = 40


@dataclass(frozen=True, slots=True)
class Purged:
    """The rows that one call deleted, and whether nothing is left."""

    is_done: bool
    transcript_count: int
    row_count: int


async def purge_tenant(
    request: pb.PurgeTenantRequest, caller: Caller, deps: Dependencies
) -> pb.PurgeTenantResponse:
    """Delete some pages of the tenant's rows; the caller repeats the call until it is done."""
    purged = await purge(deps.database, caller.tenant_id, request.settings_version)
    return pb.PurgeTenantResponse(
        done=purged.is_done,
        deleted_transcript_count=purged.transcript_count,
        deleted_row_count=purged.row_count,
    )


async def purge(database: Database, tenant_id: str, settings_version: int = 0) -> Purged:
    """Delete up to `_PAGES_PER_CALL` pages of the tenant's rows.

    From the first call on, nothing new can start in the tenant until no row is left. Purges are
    fenced by `settings_version`: a tenant with newer settings keeps its rows, also if it is
    prepared meanwhile. A version of 0 purges the tenant whatever its settings are.
    """
    async with database.transaction(tenant_id) as connection:
        if not await purge_store.begin_purge(connection, tenant_id, settings_version):
            return Purged(True, 0, 0)
    transcripts = rows = 0
    for _ in range(_PAGES_PER_CALL):
        async with database.transaction(tenant_id) as connection:
            if not await purge_store.lock_purge(connection, tenant_id, settings_version):
                return Purged(True, transcripts, rows)  # Another call has finished it.
            page = await purge_store.purge_page(connection, tenant_id, PAGE_ROWS)
            if page.row_count == 0:  # Also none of a call that was in flight.
                await purge_store.end_purge(connection, tenant_id)
                return Purged(True, transcripts, rows)
        transcripts += page.transcript_count
        rows += page.row_count
    return Purged(False, transcripts, rows)
