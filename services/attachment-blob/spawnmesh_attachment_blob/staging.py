"""Stores the files of a set, all of them or none.

The order of steps is what keeps rows and objects together, whoever crashes when:
1. A first, small transaction writes down the set (STAGING) and its blobs (PENDING). From then on releasing the set finds whatever is put.
   It is one round trip where the tenant's policy is known from before: the transaction itself makes sure that it still holds.
2. The objects are put while a second transaction takes and holds the set's row, so that releasing the set waits for the last put. Should a
   release come between the two transactions, who stages takes away what it put.
3. The second transaction makes the blobs STORED and the set STAGED, and commits.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import psycopg
import structlog
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_attachment_blob import store
from spawnmesh_attachment_blob.checking import check_items
from spawnmesh_attachment_blob.domain import AttachmentLimits, InlineItem
from spawnmesh_attachment_blob.domain.sets import (
    BLOB_NAME,
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
from spawnmesh_attachment_blob.policies import KnownPolicies, KnownPolicy
from spawnmesh_attachment_blob.removal import Removal
from spawnmesh_attachment_blob.s3_turns import S3Turns
from spawnmesh_attachment_blob.store import Intention, TenantRow
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
class BlobRequest:
    """A payload that is to be kept."""

    blob_id: str
    session_id: str
    data: bytes
    mime_type: str


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A set that passed. Files that were uploaded have no bytes here."""

    set_id: str
    session_id: str
    files: tuple[StoredFile, ...]
    data_by_hash: dict[str, bytes]
    upload_ids: tuple[str, ...]

    def data_of(self, hashes: frozenset[str]) -> dict[str, bytes]:
        """The bytes to put. Raises NOT_FOUND where they belong to an upload whose bytes were removed since it was looked at."""
        if not hashes <= self.data_by_hash.keys():
            raise not_found("upload", ", ".join(self.upload_ids))
        return {sha256: self.data_by_hash[sha256] for sha256 in hashes}


Judge = Callable[[], Awaitable[tuple[KnownPolicy, _Wanted]]]


class Staging:
    """Stages sets, and takes back what it could not finish."""

    def __init__(self, database: Database, objects: ObjectStore, turns: S3Turns, removal: Removal) -> None:
        self._database = database
        self._objects = objects
        self._turns = turns
        self._removal = removal
        self._policies = KnownPolicies()

    async def stage(self, tenant_id: str, request: SetRequest) -> AttachmentSet:
        """The set, STAGED or further, with every object durable. Raises MeshError, and then nothing is left of this call."""
        async with self._turns.taken():
            return await uninterrupted(self._stage(tenant_id, request))

    async def keep(self, tenant_id: str, request: BlobRequest) -> StoredFile:
        """The payload, durable, as a set of one file that no limits hold for. Raises MeshError, and then nothing is left of this call."""
        sha256 = await asyncio.to_thread(lambda: hashlib.sha256(request.data).hexdigest())
        file = StoredFile(BLOB_NAME, len(request.data), sha256, request.mime_type)
        wanted = _Wanted(request.blob_id, request.session_id, (file,), {sha256: request.data}, ())

        async def judged() -> tuple[KnownPolicy, _Wanted]:
            return (await self._policy(tenant_id))[0], wanted

        async with self._turns.taken():
            await uninterrupted(self._write(tenant_id, self._policies.get(tenant_id), wanted, judged))
        return file

    async def _stage(self, tenant_id: str, request: SetRequest) -> AttachmentSet:
        known = self._policies.get(tenant_id)
        wanted = None if known is None or request.uploads else await _fitting(request, known)
        return await self._write(tenant_id, known, wanted, lambda: self._judged(tenant_id, request))

    async def _write(
        self, tenant_id: str, known: KnownPolicy | None, wanted: _Wanted | None, judged: Judge
    ) -> AttachmentSet:
        while True:
            if known is None or wanted is None:
                known, wanted = await judged()
            intended = await store.intend_set(
                self._database, tenant_id, known.settings_version, wanted.set_id, wanted.session_id, wanted.files
            )
            match intended.outcome:
                case Intention.INTENDED:
                    return await self._store_or_undo(tenant_id, wanted, intended.unstored)
                case Intention.EXISTS:
                    return await self._store_or_undo(tenant_id, wanted, None)
                case Intention.UNKNOWN_TENANT:
                    raise unknown_tenant()
                case Intention.POLICY_CHANGED:
                    known = None

    async def _judged(self, tenant_id: str, request: SetRequest) -> tuple[KnownPolicy, _Wanted]:
        """The policy as it is in the database, and the set, which fits it."""
        known, tenant = await self._policy(tenant_id, request.set_id, [ref.upload_id for ref in request.uploads])
        uploaded = files_of_uploads(request.uploads, tenant.uploads, request.uploader_session_id)
        return known, await _wanted(request, _limits(request.set_id, tenant), uploaded)

    async def _policy(
        self, tenant_id: str, set_id: str = "", upload_ids: Sequence[str] = ()
    ) -> tuple[KnownPolicy, TenantRow]:
        async with self._database.transaction(tenant_id) as connection:
            tenant = await store.get_tenant(connection, tenant_id, set_id, upload_ids)
        if tenant is None or tenant.purging:
            raise unknown_tenant()
        return self._policies.remember(tenant_id, tenant), tenant

    async def _store_or_undo(self, tenant_id: str, wanted: _Wanted, unstored: frozenset[str] | None) -> AttachmentSet:
        """`unstored` is None for a set that somebody began to stage before: then nothing is put before that one is out of the way."""
        puts = asyncio.ensure_future(self._put(tenant_id, wanted, unstored or frozenset()))
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
            await self._take_back(tenant_id, unstored or frozenset())
            raise

    async def _put(self, tenant_id: str, wanted: _Wanted, hashes: frozenset[str]) -> None:
        if hashes:
            await self._objects.put_all(tenant_id, wanted.data_of(hashes))

    async def _store(
        self,
        connection: Connection,
        tenant_id: str,
        wanted: _Wanted,
        unstored: frozenset[str] | None,
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

    async def _take_back(self, tenant_id: str, hashes: frozenset[str]) -> None:
        """What was put after the set had been released or removed has no row."""
        try:
            await self._removal.take_back(tenant_id, [object_key(sha256) for sha256 in hashes])
        except (MeshError, psycopg.Error) as error:
            log.warning("objects_not_taken_back", object_count=len(hashes), error=type(error).__name__)


async def _fitting(request: SetRequest, known: KnownPolicy) -> _Wanted | None:
    """The set, if it fits the policy as it was last seen. If it does not, the policy of now has the last word: it may allow more."""
    try:
        return await _wanted(request, known.limits, ())
    except MeshError:
        return None


async def _wanted(request: SetRequest, limits: AttachmentLimits, uploaded: tuple[StoredFile, ...]) -> _Wanted:
    """The set that is asked for. Raises MeshError for one that does not fit."""
    files = await check_items(request.items, limits, uploaded)
    return _Wanted(
        request.set_id,
        request.session_id,
        (*stored_files(files), *uploaded),
        {file.sha256: file.data for file in files},
        tuple(ref.upload_id for ref in request.uploads),
    )


def _limits(set_id: str, tenant: TenantRow) -> AttachmentLimits:
    """What holds for the set: nothing new for one that passed once, so that its repeat is answered under tighter limits too."""
    if tenant.set_state is SetState.RELEASED:
        raise wrong_state(set_id, tenant.set_state)
    if tenant.set_state is not None:
        return AttachmentLimits(max_files=_NO_LIMIT, max_file_bytes=_NO_LIMIT, max_total_bytes=_NO_LIMIT)
    return tenant.policy.limits
