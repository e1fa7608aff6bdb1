"""Stores the files of a set, all of them or none.

The order of steps is what keeps rows and objects together, whoever crashes when:
1. A first, small transaction writes down the set (STAGING) and its blobs (PENDING). From then on releasing the set finds whatever is put.
2. The objects are put while a second transaction holds the set's row, so that releasing the set waits for the last put.
3. That transaction makes the blobs STORED and the set STAGED, and commits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
import structlog
from spawnmesh_core.errors import MeshError
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_attachment_blob import store
from spawnmesh_attachment_blob.checking import check_items
from spawnmesh_attachment_blob.domain import AttachmentLimits, InlineItem
from spawnmesh_attachment_blob.domain.sets import (
    AttachmentSet,
    SetState,
    StoredFile,
    require_repeat,
    stored_files,
    wrong_state,
)
from spawnmesh_attachment_blob.errors import set_vanished, unknown_tenant
from spawnmesh_attachment_blob.objects import NotAllPut, ObjectStore
from spawnmesh_attachment_blob.removal import Removal
from spawnmesh_attachment_blob.s3_turns import S3Turns
from spawnmesh_attachment_blob.uninterrupted import uninterrupted

_NO_LIMIT = 2**62

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A set as it is asked for."""

    set_id: str
    session_id: str
    files: tuple[StoredFile, ...]
    data_by_hash: dict[str, bytes]


class Staging:
    """Stages sets, and takes back what it could not finish."""

    def __init__(self, database: Database, objects: ObjectStore, turns: S3Turns, removal: Removal) -> None:
        self._database = database
        self._objects = objects
        self._turns = turns
        self._removal = removal

    async def stage(self, tenant_id: str, set_id: str, session_id: str, items: Sequence[InlineItem]) -> AttachmentSet:
        """The set, STAGED or further, with every object durable. Raises MeshError, and then nothing is left of this call."""
        files = await check_items(items, await self._limits(tenant_id, set_id))
        wanted = _Wanted(set_id, session_id, stored_files(files), {file.sha256: file.data for file in files})
        async with self._turns.taken():
            return await uninterrupted(self._store_or_undo(tenant_id, wanted))

    async def _limits(self, tenant_id: str, set_id: str) -> AttachmentLimits:
        """What holds for the set: nothing new for one that passed once, so that its repeat is answered under tighter limits too."""
        async with self._database.transaction(tenant_id) as connection:
            tenant = await store.get_tenant(connection, tenant_id, set_id)
        if tenant is None:
            raise unknown_tenant()
        if tenant.set_state is SetState.RELEASED:
            raise wrong_state(set_id, tenant.set_state)
        if tenant.set_state is not None:
            return AttachmentLimits(max_files=_NO_LIMIT, max_file_bytes=_NO_LIMIT, max_total_bytes=_NO_LIMIT)
        return tenant.limits

    async def _store_or_undo(self, tenant_id: str, wanted: _Wanted) -> AttachmentSet:
        async with self._database.transaction(tenant_id) as connection:
            unstored = await store.intend_set(connection, tenant_id, wanted.set_id, wanted.session_id, wanted.files)
        try:
            async with self._database.transaction(tenant_id) as connection:
                return await self._store(connection, tenant_id, wanted, unstored)
        except NotAllPut as failed:
            await self._undo(tenant_id, wanted.set_id, failed.never_sent_hashes)
            raise
        except psycopg.Error:  # Whether it committed is unknown; what is STAGED by now is left alone.
            await self._undo(tenant_id, wanted.set_id, frozenset())
            raise

    async def _store(
        self, connection: Connection, tenant_id: str, wanted: _Wanted, unstored: set[str] | None
    ) -> AttachmentSet:
        """`unstored` is None for a set that somebody began to stage before."""
        found = await store.lock_set(connection, tenant_id, wanted.set_id)
        if found is None:
            raise set_vanished(wanted.set_id)
        require_repeat(found, wanted.session_id, wanted.files)
        if found.state is not SetState.STAGING:
            return found
        if unstored is None:
            unstored = await store.unstored_hashes(connection, tenant_id, wanted.set_id)
        await self._objects.put_all(tenant_id, {sha256: wanted.data_by_hash[sha256] for sha256 in unstored})
        await store.finish_staging(connection, tenant_id, wanted.set_id, unstored)
        return AttachmentSet(found.set_id, found.session_id, SetState.STAGED, found.files, found.create_time)

    async def _undo(self, tenant_id: str, set_id: str, never_sent_hashes: frozenset[str]) -> None:
        try:
            await self._removal.undo(tenant_id, set_id, never_sent_hashes)
        except (MeshError, psycopg.Error) as error:
            # The rows say what there is to undo: for a repeat of this call, or for the release that follows a failed spawn.
            log.warning("staging_not_undone", set_id=set_id, error=type(error).__name__)
