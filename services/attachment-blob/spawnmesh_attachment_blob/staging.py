"""Stores the files of a set, all of them or none.

One transaction writes the set and its blobs, waits until the objects are put, and commits. Whoever wants to release the set, or to store, delete
or collect one of the blobs, meets the rows that are not committed yet and waits; nobody else sees them. Wherever it is cut off, the rows are
gone and all there may be is objects without a row: whoever staged takes them back, or the collector does. Its first step makes sure that the
limits by which the set was judged still hold, so that the tenant need not be asked for before. Each staging has keys of its own: a deletion of
the same bytes that was given up, and is carried out by S3 later, does not meet them.
"""

import asyncio
import hashlib
import secrets
import sys
from collections.abc import Awaitable, Callable, Sequence, Set
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass

import psycopg
import structlog
from spawnmesh_core.cancellation import uninterrupted
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_postgres.database import Database

from spawnmesh_attachment_blob import store
from spawnmesh_attachment_blob.admission import Admission, Bounds
from spawnmesh_attachment_blob.checking import check_items
from spawnmesh_attachment_blob.domain import AttachmentLimits, InlineItem
from spawnmesh_attachment_blob.domain.sets import (
    BLOB_NAME,
    AttachmentSet,
    SetState,
    SetToStage,
    StoredFile,
    require_repeat,
    stored_files,
    wrong_state,
)
from spawnmesh_attachment_blob.domain.uploads import UploadRef, files_of_uploads
from spawnmesh_attachment_blob.errors import unknown_tenant
from spawnmesh_attachment_blob.objects import NotAllPut, ObjectStore
from spawnmesh_attachment_blob.policies import KnownLimits
from spawnmesh_attachment_blob.removal import Removal
from spawnmesh_attachment_blob.s3_turns import S3Turns
from spawnmesh_attachment_blob.store import StageOutcome, TenantRow

_NO_LIMIT = 2**62
_SMALL_BYTES = 256 * 1024
_TURN_SECONDS = 8.0  # With those for room less than the 15 for which who spawns waits.
_ROOM_SECONDS = 5.0
_AGAIN_SECONDS = 2.0
_ALL_TAKEN = "as many bytes are stored as may be at the same time; call again later"

TURNS = Bounds("stage_calls", _ALL_TAKEN, 8, 1024, _TURN_SECONDS, _AGAIN_SECONDS)
"""Of calls that may be large: so many have their requests read and worked on at the same time."""
LARGE_CALLS = (
    "spawnmesh.attachment_blob.v1.AttachmentBlobService/StageSet",
    "spawnmesh.attachment_blob.v1.BlobService/PutBlob",
)

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


Judge = Callable[[], Awaitable[tuple[AttachmentLimits, SetToStage]]]


class Staging:
    """Stages sets, and takes back what it put for one that came to nothing."""

    def __init__(
        self, database: Database, objects: ObjectStore, turns: S3Turns, removal: Removal, *, max_bytes: int
    ) -> None:
        self._database = database
        self._objects = objects
        self._turns = turns
        self._removal = removal
        self._limits = KnownLimits()
        self._large, self._small = _room(max_bytes), _room(max_bytes // 4)

    async def stage(self, tenant_id: str, request: SetRequest) -> AttachmentSet:
        """The set, STAGED or further, with every object durable. Raises MeshError, and then no row is left of this call."""
        async with self._admitted(tenant_id, sum(sys.getsizeof(item.content) for item in request.items)):
            known = self._limits.get(tenant_id)
            wanted = None if known is None or request.uploads else await _fitting(request, known)
            return await self._write(tenant_id, known, wanted, lambda: self._judged(tenant_id, request))

    async def keep(self, tenant_id: str, request: BlobRequest) -> StoredFile:
        """The payload, durable, as a set of one file that no limits hold for. Raises MeshError, and then no row is left of this call."""
        async with self._admitted(tenant_id, len(request.data)):
            sha256 = await asyncio.to_thread(lambda: hashlib.sha256(request.data).hexdigest())
            file = StoredFile(BLOB_NAME, len(request.data), sha256, request.mime_type)
            data = {sha256: request.data}
            wanted = SetToStage(request.blob_id, request.session_id, (file,), data, secrets.token_hex(8))

            async def judged() -> tuple[AttachmentLimits, SetToStage]:
                return (await self._tenant(tenant_id)).policy.limits, wanted

            await self._write(tenant_id, self._limits.get(tenant_id), wanted, judged)
            return file

    def _admitted(self, tenant_id: str, size_bytes: int) -> AbstractAsyncContextManager[None]:
        """Room for so many bytes during the block; nothing small waits for something large. Raises POOL_EXHAUSTED."""
        room = self._small if size_bytes <= _SMALL_BYTES else self._large
        return room.taken(tenant_id, size_bytes)

    async def _write(
        self, tenant_id: str, known: AttachmentLimits | None, wanted: SetToStage | None, judged: Judge
    ) -> AttachmentSet:
        while True:
            if known is None or wanted is None:
                known, wanted = await judged()
            async with self._turns.taken():
                with self._objects.signing_ahead(tenant_id, wanted.data_by_key(wanted.data_by_hash)):
                    written = await self._write_under(tenant_id, known, wanted)
            if written is not None:
                return written
            known = None

    async def _judged(self, tenant_id: str, request: SetRequest) -> tuple[AttachmentLimits, SetToStage]:
        """The tenant's limits as they are in the database, and the set, which fits them."""
        upload_ids = [ref.upload_id for ref in request.uploads]
        tenant = await self._tenant(tenant_id, request.set_id, upload_ids, request.uploader_session_id)
        uploaded = files_of_uploads(request.uploads, tenant.uploads)
        return tenant.policy.limits, await _wanted(request, _limits(request.set_id, tenant), uploaded)

    async def _tenant(
        self, tenant_id: str, set_id: str = "", upload_ids: Sequence[str] = (), uploader_session_id: str = ""
    ) -> TenantRow:
        async with self._database.transaction(tenant_id) as connection:
            tenant = await store.get_tenant(connection, tenant_id, set_id, upload_ids, uploader_session_id)
        if tenant is None or tenant.purging:
            raise unknown_tenant()
        self._limits.remember(tenant_id, tenant.policy.limits)
        return tenant

    async def _write_under(self, tenant_id: str, limits: AttachmentLimits, wanted: SetToStage) -> AttachmentSet | None:
        """The set, durable; None where the tenant is to be looked at again: its limits are others, or something went meanwhile."""
        async with AsyncExitStack() as transaction:
            begun = self._database.transaction_of(tenant_id, *store.staging_of(tenant_id, limits, wanted))
            connection, answer = await transaction.enter_async_context(begun)
            rows = store.staged_rows(answer)
            match rows.outcome:
                case StageOutcome.WRITTEN:
                    if rows.unstored:
                        data_by_key = wanted.data_by_key(rows.unstored)
                        await uninterrupted(self._put(tenant_id, data_by_key, transaction.pop_all()))
                    return AttachmentSet(
                        wanted.set_id, wanted.session_id, SetState.STAGED, wanted.files, rows.create_time
                    )
                case StageOutcome.EXISTS:
                    found = await store.get_set(connection, tenant_id, wanted.set_id)
                    # It may have gone this moment: with its tenant, or as what a set leaves that was released long ago.
                    return None if found is None else require_repeat(found, wanted)
                case StageOutcome.POLICY_CHANGED:
                    return None
                case StageOutcome.UNKNOWN_TENANT:
                    raise unknown_tenant()
                case StageOutcome.UPLOAD_GONE:
                    raise not_found("upload", ", ".join(wanted.upload_ids))

    async def _put(self, tenant_id: str, data_by_key: dict[str, bytes], transaction: AsyncExitStack) -> None:
        """Puts the objects, then commits. Where either fails, the rows are gone, unless just the answer to the commit was lost."""
        try:
            async with transaction:
                await self._objects.put_all(tenant_id, data_by_key)
        except Exception as error:
            never_sent = error.never_sent_keys if isinstance(error, NotAllPut) else frozenset[str]()
            await self._take_back(tenant_id, data_by_key.keys() - never_sent)
            raise

    async def _take_back(self, tenant_id: str, keys: Set[str]) -> None:
        """Objects without a row are deleted; what a commit made a row of after all, or another set, stays."""
        try:
            if keys:
                await self._removal.take_back(tenant_id, keys)
        except (MeshError, psycopg.Error) as error:
            log.warning("objects_not_taken_back", object_count=len(keys), error=type(error).__name__)


def _room(size_bytes: int) -> Admission:
    """What waits for it is in memory already: so little more waits than is worked on."""
    return Admission(Bounds("stage_bytes", _ALL_TAKEN, size_bytes, 2 * size_bytes, _ROOM_SECONDS, _AGAIN_SECONDS))


async def _fitting(request: SetRequest, known: AttachmentLimits) -> SetToStage | None:
    """The set, if it fits the limits as they were last seen. If it does not, those of now have the last word: they may allow more."""
    try:
        return await _wanted(request, known, ())
    except MeshError:
        return None


async def _wanted(request: SetRequest, limits: AttachmentLimits, uploaded: tuple[StoredFile, ...]) -> SetToStage:
    """The set that is asked for. Raises MeshError for one that does not fit."""
    files = await check_items(request.items, limits, uploaded)
    return SetToStage(
        request.set_id,
        request.session_id,
        (*stored_files(files), *uploaded),
        {file.sha256: file.data for file in files},
        secrets.token_hex(8),
        tuple(ref.upload_id for ref in request.uploads),
    )


def _limits(set_id: str, tenant: TenantRow) -> AttachmentLimits:
    """What holds for the set: nothing new for one that passed once, so that its repeat is answered under tighter limits too."""
    if tenant.set_state is SetState.RELEASED:
        raise wrong_state(set_id, tenant.set_state)
    if tenant.set_state is not None:
        return AttachmentLimits(max_files=_NO_LIMIT, max_file_bytes=_NO_LIMIT, max_total_bytes=_NO_LIMIT)
    return tenant.policy.limits
