"""Upload payloads to the blob store, and release them.

The rows that name a payload commit with its entry, and the payload is uploaded right after the
commit. A context may refer to it only once it is uploaded. Therefore nothing refers to a missing
blob, the blob store has no blob without a row, and an append does not fail while the blob store is
unavailable. An upload that was cut off is started again by the next context that would use it, by a
repeated append, and by the worker.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from weakref import WeakValueDictionary

import psycopg
import structlog
from psycopg_pool import PoolTimeout
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import activity_service_pb2 as activity_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.large_results import file_id_of
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.activity_recorder import ActivityRecorder
from spawnmesh_transcript.operations.bodies.stubs import payload_of
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import payloads as payload_store
from spawnmesh_transcript.store import tier as tier_store
from spawnmesh_transcript.store.payloads import UnstoredPayload, UsableStub

_PAGES = 4  # Of all tenants, in flight.
_PAGES_OF_TENANT = 2  # In flight; a tenant with many payloads leaves the others to the rest.
_ENTRIES = 8  # Of one page.
_FILES = 256  # Of one entry; its body is read again for more.
_FILES_IN_FLIGHT = 4  # Of one entry; each takes several times its size while it is sent.
_MAX_FAILURES = 8  # After so many failures, the rest of a page is left to the next upload.
_BODY_BYTES = 16 * 1024 * 1024  # Of all entries of the process whose payloads are in flight.
_RELEASE_PAGE = 32
_RELEASED = (Reason.ATTACHMENT_SET_STATE, Reason.NOT_FOUND)
"""Errors of a blob that was released meanwhile, with the transcript or with the tenant."""

_THREAD_BYTES = 256 * 1024  # A larger body takes longer to parse than a thread takes to start.

log = structlog.get_logger()


class PayloadUploader:
    """Upload pending payloads, one task for each transcript, and release payloads."""

    def __init__(
        self, database: Database, blobs: BlobStore, activities: ActivityRecorder, tasks: asyncio.TaskGroup
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._activities = activities
        self._tasks = tasks
        self._pages = asyncio.Semaphore(_PAGES)
        self._pages_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._bodies = FairLimiter(
            LimiterPolicy("payload bytes", "", _BODY_BYTES, tenant_capacity=_BODY_BYTES)
        )
        self._in_flight: dict[Key, asyncio.Task[str]] = {}
        self._repeat: set[Key] = set()
        self._failing: dict[Key, Reason] = {}
        """The recorded reason of a failing upload, so that a repeated failure is recorded once."""

    def start(self, key: Key) -> "asyncio.Task[str]":
        """Start to upload the transcript's pending payloads.

        The task does not fail. If it leaves payloads pending it returns the reason, otherwise an
        empty text.
        """
        task = self._in_flight.get(key)
        if task is None or task.done():
            # In an empty context: the task outlives the caller's deadline.
            task = self._tasks.create_task(self._upload(key), name="upload payloads", context=Context())
            self._in_flight[key] = task
        else:
            # The task may have read the pending rows before the caller's commit.
            self._repeat.add(key)
        return task

    async def release(self, key: Key) -> None:
        """Release all payloads of a deleted transcript and delete their rows.

        Raises MeshError if the blob store is unavailable.
        """
        while True:
            async with self._database.transaction(key.tenant_id) as connection:
                blob_ids = await payload_store.list_payloads_to_release(
                    connection, key, row_count=_RELEASE_PAGE
                )
            if not blob_ids:
                self._failing.pop(key, None)
                return
            await asyncio.gather(*map(self._blobs.release, blob_ids))
            async with self._database.transaction(key.tenant_id) as connection:
                await payload_store.delete_payloads(connection, key, blob_ids)

    async def release_marked(self, key: Key, seqs: Collection[int] | None = None) -> None:
        """Release the payloads that are marked for release, of these entries or of all.

        Raises MeshError if the blob store is unavailable.
        """
        while True:
            async with self._database.transaction(key.tenant_id) as connection:
                leaving = await tier_store.list_releasing_payloads(
                    connection, key, row_count=_RELEASE_PAGE, seqs=seqs
                )
            if not leaving:
                return
            blob_ids = [blob_id for blob_id, _ in leaving]
            with impersonate(key.tenant_id):
                outcomes = await asyncio.gather(*map(self._blobs.release, blob_ids), return_exceptions=True)
            released = [blob_id for blob_id, error in zip(blob_ids, outcomes, strict=True) if error is None]
            async with self._database.transaction(key.tenant_id) as connection:
                await payload_store.delete_payloads(connection, key, released)
            for error in outcomes:
                if error is not None:
                    raise error

    async def _upload(self, key: Key) -> str:
        pages = self._pages_of.setdefault(key.tenant_id, asyncio.Semaphore(_PAGES_OF_TENANT))
        try:
            while await self._upload_page(key, pages) or key in self._repeat:
                self._repeat.discard(key)
        except MeshError as error:
            if error.reason not in _RELEASED:
                log.warning("payloads_not_uploaded", session=key.session_id, reason=error.reason)
            return error.reason
        except (psycopg.Error, PoolTimeout) as error:
            log.warning("payloads_not_uploaded", session=key.session_id, error=type(error).__name__)
            return Reason.DEPENDENCY_UNAVAILABLE
        finally:
            self._repeat.discard(key)
            self._in_flight.pop(key, None)
        return ""

    async def _upload_page(self, key: Key, pages: asyncio.Semaphore) -> bool:
        """Upload the payloads of a page of entries; return False if no payload is pending.

        Raises the first error, after the payloads that were uploaded are marked as stored.
        """
        async with pages, self._pages:
            async with self._database.transaction(key.tenant_id) as connection:
                entries = await payload_store.list_unstored_payloads(
                    connection, key, row_count=_ENTRIES, file_count=_FILES
                )
            if not entries:
                self._failing.pop(key, None)
                return False
            failures: list[Exception] = []
            with impersonate(key.tenant_id):
                outcomes = await asyncio.gather(
                    *(self._upload_entry(key, pending, failures) for pending in entries.values())
                )
            uploaded = [
                payload.blob_id
                for pending, errors in zip(entries.values(), outcomes, strict=True)
                for payload, error in zip(pending, errors, strict=True)
                if error is None
            ]
            async with self._database.transaction(key.tenant_id) as connection:
                usable = await payload_store.mark_stored(connection, key, uploaded)
        for stub in usable:
            full_token_count = entries[stub.seq][0].entry_token_count
            self._activities.record_later(key, _stubbed(stub, full_token_count=full_token_count))
        for seq, errors in zip(entries, outcomes, strict=True):
            for error in filter(None, errors):
                if isinstance(error, MeshError) and error.reason not in _RELEASED:
                    self._record_failure(key, error.reason, seq)
                raise error
        return True

    async def _upload_entry(
        self, key: Key, pending: Sequence[UnstoredPayload], failures: list[Exception]
    ) -> list[Exception | None]:
        """Upload payloads of one entry, whose body is read once; return the error of each, or None.

        Errors are also added to `failures`, which the entries of a page share.
        """
        async with self._bodies.hold(size=pending[0].entry_bytes):
            try:
                content = await self._read_content(key, pending[0].seq)
            except (MeshError, psycopg.Error, PoolTimeout) as error:
                failures.append(error)
                return [error] * len(pending)
            slots = asyncio.Semaphore(_FILES_IN_FLIGHT)

            async def put(payload: UnstoredPayload) -> Exception | None:
                async with slots:
                    if len(failures) >= _MAX_FAILURES:
                        return failures[0]
                    try:
                        await self._blobs.put(
                            payload.blob_id,
                            payload_of(content[payload.block_index]) or b"",
                            session_id=key.session_id,
                            mime_type=payload.mime_type,
                        )
                    except MeshError as error:
                        failures.append(error)
                        return error
                return None

            return await asyncio.gather(*map(put, pending))

    async def _read_content(self, key: Key, seq: int) -> Sequence[content_pb.ContentBlock]:
        """Return the content of one entry: its body is complete while a payload is pending.

        Raises NOT_FOUND.
        """
        async with self._database.transaction(key.tenant_id) as connection:
            entries = await entry_store.read_entries(connection, key, [seq])
        if not entries:  # Deleted meanwhile.
            raise not_found("transcript", key.session_id)
        body = entries.pop().body
        if len(body) < _THREAD_BYTES:
            return pb.EntryBody.FromString(body).message.content
        return (await asyncio.to_thread(pb.EntryBody.FromString, body)).message.content

    def _record_failure(self, key: Key, reason: Reason, seq: int) -> None:
        if self._failing.get(key) is not reason:
            self._failing[key] = reason
            failed = activity_pb.Failed(action=activity_pb.FAILED_ACTION_PUT_PAYLOAD, reason=reason, seq=seq)
            self._activities.record_later(key, activity_pb.Activity(failed=failed))


def _stubbed(stub: UsableStub, *, full_token_count: int) -> activity_pb.Activity:
    return activity_pb.Activity(
        stubbed=activity_pb.Stubbed(
            seq=stub.seq,
            tool_name=stub.tool_name,
            file_ids=map(file_id_of, stub.blob_ids),
            size_bytes=stub.size_bytes,
            full_token_count=full_token_count,
            stub_token_count=stub.token_count,
        )
    )


@asynccontextmanager
async def open_payload_uploader(
    database: Database, blobs: BlobStore, activities: ActivityRecorder
) -> AsyncIterator[PayloadUploader]:
    """Upload payloads during the block, and finish the uploads in flight at its end."""
    async with asyncio.TaskGroup() as tasks:
        yield PayloadUploader(database, blobs, activities, tasks)
