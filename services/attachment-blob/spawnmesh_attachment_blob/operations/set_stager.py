"""Stores the files of a set, all of them or none.

One transaction writes the set and its blobs, waits until the objects are put, and commits. Calls
that release the set, or that store, delete or collect one of the blobs, wait for the uncommitted
rows; other calls do not see them. After an interruption the rows are gone, and only objects
without a row may be left: the stager deletes them, or the garbage collector does.

The transaction checks that the limits of the validation still hold, so that cached limits are
enough. It locks the bytes that were stored before, so that calls that release another set with them
wait. If bytes of a referenced set are gone by then, the validation is repeated and says why. Each
call puts its objects under new keys, so that a delayed delete of the same bytes does not affect
them.
"""

import asyncio
import hashlib
import secrets
import sys
from collections.abc import Awaitable, Callable, Collection, Set
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress

import psycopg
import structlog
from spawnmesh_core.cancellation import shield_until_done
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy

from spawnmesh_attachment_blob.clients.objects import NotAllPut, ObjectStore
from spawnmesh_attachment_blob.domain import AttachmentLimits
from spawnmesh_attachment_blob.domain.errors import unknown_tenant
from spawnmesh_attachment_blob.domain.items import StoredFile
from spawnmesh_attachment_blob.domain.references import ReferencedSets, files_of_references
from spawnmesh_attachment_blob.domain.sets import (
    BLOB_NAME,
    AttachmentSet,
    BlobRequest,
    SetRequest,
    SetState,
    SetToStage,
    require_same_set,
    stored_files,
    wrong_state,
)
from spawnmesh_attachment_blob.domain.staging import NoRoom, StageRefusal, WrittenSet
from spawnmesh_attachment_blob.domain.storage import storage_exceeded
from spawnmesh_attachment_blob.domain.uploads import UploadKey, files_of_uploads
from spawnmesh_attachment_blob.operations.inline_items import validate_items
from spawnmesh_attachment_blob.operations.limits_cache import LimitsCache
from spawnmesh_attachment_blob.operations.releaser import Releaser
from spawnmesh_attachment_blob.operations.s3_limiter import S3TransactionLimiter
from spawnmesh_attachment_blob.store import sets, tenants, usage
from spawnmesh_attachment_blob.store.tenants import TenantRow

_UNLIMITED = 2**62
_SMALL_BYTES = 256 * 1024
# Together with the wait for bytes this is less than the 15 s for which the session service waits.
_CALL_WAIT_SECONDS = 8.0
_BYTES_WAIT_SECONDS = 5.0
_RETRY_SECONDS = 2.0
_REFUSAL = "this replica stores as many bytes as it may; call again later"

CALL_LIMIT = LimiterPolicy(
    "stage_calls",
    _REFUSAL,
    8,
    max_waiting=1024,
    wait_seconds=_CALL_WAIT_SECONDS,
    retry_after_seconds=_RETRY_SECONDS,
)
"""Calls of LARGE_CALLS whose requests are read and worked on at the same time."""
LARGE_CALLS = (
    "spawnmesh.attachment_blob.v1.AttachmentBlobService/StageSet",
    "spawnmesh.attachment_blob.v1.BlobService/PutBlob",
)

log = structlog.get_logger()

Validation = Callable[[], Awaitable[tuple[AttachmentLimits, SetToStage]]]


class _ReferenceGone(Exception):
    """Bytes of another set went after the validation. It rolls the transaction back."""


class SetStager:
    """Stages sets and payloads, and deletes the objects of a call that failed."""

    def __init__(
        self,
        database: Database,
        objects: ObjectStore,
        s3_limiter: S3TransactionLimiter,
        releaser: Releaser,
        *,
        max_bytes: int,
    ) -> None:
        self._database = database
        self._objects = objects
        self._s3_limiter = s3_limiter
        self._releaser = releaser
        self._limits = LimitsCache()
        self._large, self._small = _byte_limiter(max_bytes), _byte_limiter(max_bytes // 4)

    async def stage_set(self, tenant_id: str, request: SetRequest) -> AttachmentSet:
        """Return the set, STAGED or further, with durable objects.

        Raises MeshError; then this call leaves no row.
        """
        async with self._acquire_bytes(tenant_id, sum(sys.getsizeof(item.content) for item in request.items)):
            cached = self._limits.get(tenant_id)
            set_to_stage = None
            if cached is not None and not (request.uploads or request.references):
                set_to_stage = await _validate_with_cached(request, cached)

            async def validate() -> tuple[AttachmentLimits, SetToStage]:
                return await self._validate(tenant_id, request)

            return await self._write(tenant_id, cached, set_to_stage, validate)

    async def stage_blob(self, tenant_id: str, request: BlobRequest) -> StoredFile:
        """Store the payload as a set of one file, without limits. It is durable on return.

        Raises MeshError; then this call leaves no row.
        """
        async with self._acquire_bytes(tenant_id, len(request.data)):
            sha256 = await asyncio.to_thread(lambda: hashlib.sha256(request.data).hexdigest())
            file = StoredFile(BLOB_NAME, len(request.data), sha256, request.mime_type)
            data = {sha256: request.data}
            set_to_stage = SetToStage(
                request.blob_id, request.session_id, (file,), data, secrets.token_hex(8), is_limited=False
            )

            async def read_limits() -> tuple[AttachmentLimits, SetToStage]:
                async with self._database.transaction(tenant_id) as connection:
                    return (await self._tenant(connection, tenant_id)).policy.limits, set_to_stage

            await self._write(tenant_id, self._limits.get(tenant_id), set_to_stage, read_limits)
            return file

    def _acquire_bytes(self, tenant_id: str, size_bytes: int) -> AbstractAsyncContextManager[None]:
        """Hold memory for so many bytes.

        Small calls do not wait for large ones. Raises POOL_EXHAUSTED.
        """
        limiter = self._small if size_bytes <= _SMALL_BYTES else self._large
        return limiter.hold(tenant_id, size_bytes)

    async def _write(
        self,
        tenant_id: str,
        limits: AttachmentLimits | None,
        set_to_stage: SetToStage | None,
        validate: Validation,
    ) -> AttachmentSet:
        """Write the set. Validate it again as long as what it was validated with is out of date."""
        while True:
            if limits is None or set_to_stage is None:
                limits, set_to_stage = await validate()
            async with self._s3_limiter.acquire(tenant_id):
                objects = set_to_stage.data_by_key(set_to_stage.data_by_hash)
                with self._objects.presign(tenant_id, objects), suppress(_ReferenceGone):
                    written = await self._try_write(tenant_id, limits, set_to_stage)
                    if written is not None:
                        return written
            limits = None

    async def _validate(self, tenant_id: str, request: SetRequest) -> tuple[AttachmentLimits, SetToStage]:
        """Validate the set with the stored limits and return both."""
        keys = [UploadKey(request.uploader_session_id, ref.upload_id) for ref in request.uploads]
        async with self._database.transaction(tenant_id) as connection:
            tenant = await self._tenant(connection, tenant_id, request.set_id, keys)
            limits = _limits_of_set(request.set_id, tenant)
            found = ReferencedSets({})
            if request.references:
                found = await sets.list_referenced_sets(connection, tenant_id, request.references)
        uploaded = files_of_uploads(request.uploads, tenant.uploads)
        referenced = files_of_references(
            request.references,
            found,
            request.uploader_session_id or None,
            first_index=len(request.items) + len(request.uploads),
        )
        return tenant.policy.limits, await _set_to_stage(request, limits, uploaded, referenced)

    async def _tenant(
        self, connection: Connection, tenant_id: str, set_id: str = "", keys: Collection[UploadKey] = ()
    ) -> TenantRow:
        tenant = await tenants.get_tenant(connection, tenant_id, set_id, keys)
        if tenant is None:
            raise unknown_tenant()
        self._limits.put(tenant_id, tenant.policy.limits)
        return tenant

    async def _try_write(
        self, tenant_id: str, limits: AttachmentLimits, set_to_stage: SetToStage
    ) -> AttachmentSet | None:
        """Return the durable set.

        Returns None if the limits changed or the existing set went. Then validate again. The block
        commits, except if it raises: UPLOAD_GONE and REFERENCE_GONE must be rolled back.
        """
        async with AsyncExitStack() as transaction:
            connection, outcome = await transaction.enter_async_context(
                sets.stage_set(self._database, tenant_id, limits, set_to_stage)
            )
            match outcome:
                case WrittenSet():
                    if outcome.unstored:
                        data_by_key = set_to_stage.data_by_key(outcome.unstored)
                        is_limited = set_to_stage.is_limited
                        await shield_until_done(
                            self._put_and_commit(
                                tenant_id, data_by_key, connection, transaction.pop_all(), is_limited
                            )
                        )
                    return AttachmentSet(
                        set_to_stage.set_id,
                        set_to_stage.session_id,
                        SetState.STAGED,
                        set_to_stage.files,
                        outcome.create_time,
                        set_to_stage.run_id,
                        set_to_stage.reader_session_ids,
                    )
                case StageRefusal.EXISTS:
                    found = await sets.get_set(connection, tenant_id, set_to_stage.set_id)
                    # A purge, or the removal of an old tombstone, may have deleted it at this
                    # moment.
                    return None if found is None else require_same_set(found, set_to_stage)
                case NoRoom(in_use):
                    found = await sets.get_set(connection, tenant_id, set_to_stage.set_id)
                    if found is None:
                        raise storage_exceeded(in_use, sum(map(len, set_to_stage.data_by_hash.values())))
                    return require_same_set(found, set_to_stage)
                case StageRefusal.POLICY_CHANGED:
                    return None
                case StageRefusal.UNKNOWN_TENANT:
                    raise unknown_tenant()
                case StageRefusal.UPLOAD_GONE:
                    raise not_found("upload", ", ".join(set_to_stage.upload_ids))
                case StageRefusal.REFERENCE_GONE:
                    raise _ReferenceGone

    async def _put_and_commit(
        self,
        tenant_id: str,
        data_by_key: dict[str, bytes],
        connection: Connection,
        transaction: AsyncExitStack,
        is_limited: bool,
    ) -> None:
        """Put the objects, then count their bytes and commit.

        If one of them fails, the rows are gone, unless only the response to the commit was lost.
        Raises ATTACHMENTS_STORED_BYTES_EXCEEDED if other calls have used up the quota meanwhile.
        """
        stored_bytes = sum(map(len, data_by_key.values()))
        try:
            async with transaction:
                await self._objects.put_all(tenant_id, data_by_key)
                await usage.commit_with_usage(
                    connection, tenant_id, stored_bytes=stored_bytes, is_limited=is_limited
                )
        except Exception as error:
            never_sent = error.never_sent_keys if isinstance(error, NotAllPut) else frozenset[str]()
            await self._delete_orphans(tenant_id, data_by_key.keys() - never_sent)
            if isinstance(error, usage.StorageFull):
                raise await self._exceeded(tenant_id, stored_bytes) from None
            raise

    async def _exceeded(self, tenant_id: str, size_bytes: int) -> MeshError:
        """Return the refusal of so many bytes."""
        async with self._database.transaction(tenant_id) as connection:
            in_use = await usage.get_usage(connection, tenant_id)
        return unknown_tenant() if in_use is None else storage_exceeded(in_use, size_bytes)

    async def _delete_orphans(self, tenant_id: str, keys: Set[str]) -> None:
        """Delete those of the objects that no committed row names."""
        try:
            if keys:
                await self._releaser.delete_orphans_unlimited(tenant_id, keys)
        except (MeshError, psycopg.Error) as error:
            log.warning("orphans_not_deleted", object_count=len(keys), error=type(error).__name__)


def _byte_limiter(size_bytes: int) -> FairLimiter:
    """Return a limiter by bytes.

    The bytes of queued calls are in memory already, so its queue is short.
    """
    return FairLimiter(
        LimiterPolicy(
            "stage_bytes",
            _REFUSAL,
            size_bytes,
            max_waiting=2 * size_bytes,
            wait_seconds=_BYTES_WAIT_SECONDS,
            retry_after_seconds=_RETRY_SECONDS,
        )
    )


async def _validate_with_cached(request: SetRequest, cached: AttachmentLimits) -> SetToStage | None:
    """Validate with cached limits.

    Return None if the set fails: the stored limits may allow more.
    """
    try:
        return await _set_to_stage(request, cached)
    except MeshError:
        return None


async def _set_to_stage(
    request: SetRequest,
    limits: AttachmentLimits,
    uploaded: tuple[StoredFile, ...] = (),
    referenced: tuple[StoredFile, ...] = (),
) -> SetToStage:
    """Validate the request. Raises MeshError."""
    files = await validate_items(request.items, limits, (*uploaded, *referenced))
    return SetToStage(
        request.set_id,
        request.session_id,
        (*stored_files(files), *uploaded, *referenced),
        {file.sha256: file.data for file in files},
        secrets.token_hex(8),
        tuple(ref.upload_id for ref in request.uploads),
        frozenset(file.sha256 for file in referenced),
        request.run_id,
        request.reader_session_ids,
    )


def _limits_of_set(set_id: str, tenant: TenantRow) -> AttachmentLimits:
    """Return the limits for the set.

    An existing set passed before: its repeat succeeds under tighter limits, too.
    """
    if tenant.set_state is SetState.RELEASED:
        raise wrong_state(set_id, tenant.set_state)
    if tenant.set_state is not None:
        return AttachmentLimits(max_files=_UNLIMITED, max_file_bytes=_UNLIMITED, max_total_bytes=_UNLIMITED)
    return tenant.policy.limits
