"""Stores the files of a set, all of them or none.

The order of steps is what keeps rows and objects together, whoever crashes when:
1. A first, small transaction writes down the set (STAGING) and its blobs (PENDING). From then on releasing the set finds whatever is put.
2. The objects are put while a second transaction takes and holds the set's row, so that releasing the set waits for the last put. Should a
   release come between the two transactions, who stages takes away what it put.
3. The second transaction makes the blobs STORED and the set STAGED, and commits.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
import structlog
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_attachment_blob import store
from spawnmesh_attachment_blob.checking import check_items
from spawnmesh_attachment_blob.domain import AttachmentLimits, InlineItem
from spawnmesh_attachment_blob.domain.sets import (
    AttachmentSet,
    SetState,
    StoredFile,
    object_key,
    require_repeat,
    stored_files,
    wrong_state,
)
from spawnmesh_attachment_blob.domain.uploads import UploadRef, files_of_uploads
from spawnmesh_attachment_blob.errors import set_vanished, unknown_tenant
from spawnmesh_attachment_blob.objects import NotAllPut, ObjectStore
from spawnmesh_attachment_blob.removal import Removal
from spawnmesh_attachment_blob.s3_turns import S3Turns
from spawnmesh_attachment_blob.store import TenantRow
from spawnmesh_attachment_blob.uninterrupted import uninterrupted

_NO_LIMIT = 2**62

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SetRequest:
    """A set as it is asked for. `uploader_session_id` is set where a run asks, which may name its own session's uploads alone."""

    set_id: str
    session_id: str
    items: Sequence[InlineItem]
    uploads: Sequence[UploadRef] = ()
    uploader_session_id: str = ""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A set that passed. Files that were uploaded have no bytes here."""

    set_id: str
    session_id: str
    files: tuple[StoredFile, ...]
    data_by_hash: dict[str, bytes]
    upload_ids: tuple[str, ...]

    def data_of(self, hashes: set[str]) -> dict[str, bytes]:
        """The bytes to put. Raises NOT_FOUND where they belong to an upload whose bytes were removed since it was looked at."""
        if not hashes <= self.data_by_hash.keys():
            raise not_found("upload", ", ".join(self.upload_ids))
        return {sha256: self.data_by_hash[sha256] for sha256 in hashes}


class Staging:
    """Stages sets, and takes back what it could not finish."""

    def __init__(self, database: Database, objects: ObjectStore, turns: S3Turns, removal: Removal) -> None:
        self._database = database
        self._objects = objects
        self._turns = turns
        self._removal = removal

    async def stage(self, tenant_id: str, request: SetRequest) -> AttachmentSet:
        """The set, STAGED or further, with every object durable. Raises MeshError, and then nothing is left of this call."""
        async with self._turns.taken():
            return await uninterrupted(self._stage(tenant_id, request))

    async def _stage(self, tenant_id: str, request: SetRequest) -> AttachmentSet:
        async with self._database.transaction(tenant_id) as connection:
            upload_ids = tuple(ref.upload_id for ref in request.uploads)
            tenant = await store.get_tenant(connection, tenant_id, request.set_id, upload_ids)
            if tenant is None or tenant.purging:
                raise unknown_tenant()
            uploaded = files_of_uploads(request.uploads, tenant.uploads, request.uploader_session_id)
            files = await check_items(request.items, _limits(request.set_id, tenant), uploaded)
            wanted = _Wanted(
                request.set_id,
                request.session_id,
                (*stored_files(files), *uploaded),
                {file.sha256: file.data for file in files},
                upload_ids,
            )
            async with connection.pipeline():  # The commit goes along with the statement: one round trip less.
                intended = await store.intend_set(connection, tenant_id, wanted.set_id, wanted.session_id, wanted.files)
                await connection.commit()
            unstored = await store.unstored(intended)
        return await self._store_or_undo(tenant_id, wanted, unstored)

    async def _store_or_undo(self, tenant_id: str, wanted: _Wanted, unstored: set[str] | None) -> AttachmentSet:
        """`unstored` is None for a set that somebody began to stage before: then nothing is put before that one is out of the way."""
        puts = asyncio.ensure_future(self._put(tenant_id, wanted, unstored or set()))
        try:
            async with self._database.transaction(tenant_id) as connection:
                return await self._store(connection, tenant_id, wanted, unstored, puts)
        except NotAllPut as failed:
            await self._undo(tenant_id, wanted.set_id, failed.never_sent_hashes)
            raise
        except (MeshError, psycopg.Error) as error:
            await asyncio.wait({puts})
            # Whether a broken transaction committed is unknown; what is STAGED by now is left alone.
            if puts.exception() is not None or isinstance(error, psycopg.Error):
                await self._undo(tenant_id, wanted.set_id, frozenset())
            await self._take_back(tenant_id, unstored or set())
            raise

    async def _put(self, tenant_id: str, wanted: _Wanted, hashes: set[str]) -> None:
        if hashes:
            await self._objects.put_all(tenant_id, wanted.data_of(hashes))

    async def _store(
        self,
        connection: Connection,
        tenant_id: str,
        wanted: _Wanted,
        unstored: set[str] | None,
        puts: asyncio.Future[None],
    ) -> AttachmentSet:
        found = await store.lock_set(connection, tenant_id, wanted.set_id)
        if found is None:
            raise set_vanished(wanted.set_id)
        require_repeat(found, wanted.session_id, wanted.files)
        if found.state is not SetState.STAGING:
            return found
        if unstored is None:
            unstored = await store.unstored_hashes(connection, tenant_id, wanted.set_id)
            await self._put(tenant_id, wanted, unstored)
        await puts
        async with connection.pipeline():
            await store.finish_staging(connection, tenant_id, wanted.set_id, unstored)
            await connection.commit()
        return AttachmentSet(found.set_id, found.session_id, SetState.STAGED, found.files, found.create_time)

    async def _undo(self, tenant_id: str, set_id: str, never_sent_hashes: frozenset[str]) -> None:
        try:
            await self._removal.undo(tenant_id, set_id, never_sent_hashes)
        except (MeshError, psycopg.Error) as error:
            # The rows say what there is to undo: for a repeat of this call, the release that follows a failed spawn, or the collector.
            log.warning("staging_not_undone", set_id=set_id, error=type(error).__name__)

    async def _take_back(self, tenant_id: str, hashes: set[str]) -> None:
        """What was put after the set had been released or removed has no row."""
        try:
            await self._removal.take_back(tenant_id, [object_key(sha256) for sha256 in hashes])
        except (MeshError, psycopg.Error) as error:
            log.warning("objects_not_taken_back", object_count=len(hashes), error=type(error).__name__)


def _limits(set_id: str, tenant: TenantRow) -> AttachmentLimits:
    """What holds for the set: nothing new for one that passed once, so that its repeat is answered under tighter limits too."""
    if tenant.set_state is SetState.RELEASED:
        raise wrong_state(set_id, tenant.set_state)
    if tenant.set_state is not None:
        return AttachmentLimits(max_files=_NO_LIMIT, max_file_bytes=_NO_LIMIT, max_total_bytes=_NO_LIMIT)
    return tenant.policy.limits
