"""Keeps the large results of tools, and large images, in the blob store.

The rows that name a payload commit with its entry, and the blob is put right after; only then may a context refer to it. So nothing ever
refers to what is not there, the blob store never has what nothing names, and an append never fails because the blob store is away. What was
cut off between the two is made up for by the next context that would have used it, and by a repeat of the append.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from contextvars import Context
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import psycopg
import structlog
from psycopg_pool import PoolTimeout
from spawnmesh.attachment_blob.v1 import blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.blob_service_pb2_grpc import BlobServiceStub
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import activity_service_pb2 as activity_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_runtime.acting import acting_for
from spawnmesh_runtime.peers import Peer

from spawnmesh_transcript import payload_store, store, tier_store
from spawnmesh_transcript.activities import Activities
from spawnmesh_transcript.domain.entries import NewEntry
from spawnmesh_transcript.domain.large_results import Stub, file_id_of
from spawnmesh_transcript.domain.policy import TenantPolicy
from spawnmesh_transcript.domain.refusals import stored_hash_differs
from spawnmesh_transcript.payload_store import UsableStub, WaitingPayload
from spawnmesh_transcript.room import Room
from spawnmesh_transcript.store import Append, AppendOutcome, Key
from spawnmesh_transcript.stubbing import (
    LargeResult,
    calls_in,
    calls_of,
    image_stubs,
    large_results,
    make_stubs,
    payload_of,
)

if TYPE_CHECKING:  # The stubs' types for asyncio exist for type checkers only.
    from spawnmesh.attachment_blob.v1.blob_service_pb2_grpc import BlobServiceAsyncStub

PATIENCE_SECONDS = 5.0
"""How long an append that is committed waits for its payloads to be put before it answers all the same."""

_PUT_SECONDS = 20.0
_GET_SECONDS = 20.0
_AT_ONCE = 4
_AT_ONCE_OF_TENANT = 2  # One that has much to put leaves turns to the others.
_FETCHES = 8  # Of the whole process.
_ROWS = 8
_FILES = 256  # Of one entry; its body is read again for more.
_FILES_AT_ONCE = 4  # Of one entry; each is there a few times while it is sent.
_FAILURES = 8  # From so many on, what is left of a page is left to the next one.
_BODY_BYTES = 16 * 1024 * 1024  # Of all entries of the process whose payloads are being put.
_RELEASED = (Reason.ATTACHMENT_SET_STATE, Reason.NOT_FOUND)  # Meanwhile, with the transcript or with all of the tenant.
_THREAD_BYTES = 256 * 1024  # What takes longer to read than a thread to begin.

log = structlog.get_logger()


class Payloads:
    """What becomes of large results: rows with their entries, blobs behind them, and their release."""

    def __init__(
        self, database: Database, blobs: Peer | None, activities: Activities, tasks: asyncio.TaskGroup
    ) -> None:
        self._database = database
        self._peer = blobs
        self._activities = activities
        self._tasks = tasks
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._turns_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._bodies = Room(_BODY_BYTES)
        self._fetches = asyncio.Semaphore(_FETCHES)
        self._under_way: dict[Key, asyncio.Task[str]] = {}
        self._once_more: set[Key] = set()
        self._failing: dict[Key, Reason] = {}
        """Why payloads could not be put, as it was told those who watch: once, however often it is tried."""

    @property
    def is_connected(self) -> bool:
        """Whether there is a blob store."""
        return self._peer is not None

    async def stubs_of(
        self, key: Key, entries: Sequence[NewEntry], policy: TenantPolicy, *, before_seq: int | None = None
    ) -> list[Stub]:
        """The stubs of those entries that are large results, and the files of large images, where the tenant's policy has any.

        The entries are about to be appended, or are those from `before_seq` on.
        """
        results, images = self._large(entries, policy)
        if not results:
            return images
        here = calls_in(entries)
        earlier: dict[str, str] = {}
        missing = {result.call_id for result in results} - here.keys()
        if missing:
            async with self._database.transaction(key.tenant_id) as connection:
                await store.keep_index_order(connection)
                seqs = await payload_store.find_calls(connection, key, missing, before_seq=before_seq)
                for entry in sorted(await store.read_entries(connection, key, seqs), key=lambda entry: entry.seq):
                    earlier |= calls_of(entry.body)  # Of a call id that is used again, the newer one.
        return [*await asyncio.to_thread(make_stubs, results, earlier | here), *images]

    async def append(self, append: Append, stubs: Sequence[Stub]) -> AppendOutcome:
        """Makes one append with its stubs, and puts their payloads.

        Where a context is to have references of it, it waits for that, no longer than PATIENCE_SECONDS.
        """
        outcome = await payload_store.append_with_stubs(self._database, append, stubs)
        if outcome.outcome in ("APPENDED", "REPLAYED"):
            task = self.put_waiting(append.key)
            if any(stub.body is not None for stub in stubs):
                await asyncio.wait([task], timeout=PATIENCE_SECONDS)
        return outcome

    async def insert_forked(
        self, connection: Connection, key: Key, entries: Sequence[NewEntry], policy: TenantPolicy, *, first_seq: int
    ) -> bool:
        """Writes the stubs of entries that the transaction has just written, the first of them at `first_seq`; whether there are any."""
        results, images = self._large(entries, policy)
        made = await asyncio.to_thread(make_stubs, results, calls_in(entries)) if results else []
        stubs = [*made, *images]
        if stubs:
            await payload_store.insert_stubs(connection, key, stubs, first_seq=first_seq)
        return bool(stubs)

    def put_waiting(self, key: Key) -> "asyncio.Task[str]":
        """Begins to put what the blob store may not have yet of the transcript.

        The task never fails, and may leave some of it for the next; then it gives the reason, and else an empty text.
        """
        task = self._under_way.get(key)
        if task is None or task.done():
            # In no caller's context: it goes on when the caller's time is over.
            task = self._tasks.create_task(self._put_waiting(key), name="put payloads", context=Context())
            self._under_way[key] = task
        else:
            self._once_more.add(key)  # It may have looked before there was what this caller means.
        return task

    async def release(self, key: Key) -> None:
        """Gives up all payloads of a transcript that nobody writes any more. Raises MeshError where the blob store is away."""
        while True:
            async with self._database.transaction(key.tenant_id) as connection:
                await store.keep_index_order(connection)
                blob_ids = await payload_store.payloads_to_release(connection, key, row_count=_ROWS * 4)
            if not blob_ids:
                self._failing.pop(key, None)
                return
            await asyncio.gather(*(self._release(blob_id) for blob_id in blob_ids))
            async with self._database.transaction(key.tenant_id) as connection:
                await store.keep_index_order(connection)
                await payload_store.delete_payloads(connection, key, blob_ids)

    async def release_leaving(self, key: Key, seqs: Collection[int] | None = None) -> None:
        """Gives up the payloads that leave these entries of a transcript, or any. Raises MeshError where the blob store is away."""
        while True:
            async with self._database.transaction(key.tenant_id) as connection:
                await store.keep_index_order(connection)
                leaving = await tier_store.leaving_payloads(connection, key, row_count=_ROWS * 4, seqs=seqs)
            if not leaving:
                return
            blob_ids = [blob_id for blob_id, _ in leaving]
            with acting_for(key.tenant_id):
                outcomes = await asyncio.gather(*map(self._release, blob_ids), return_exceptions=True)
            released = [blob_id for blob_id, error in zip(blob_ids, outcomes, strict=True) if error is None]
            async with self._database.transaction(key.tenant_id) as connection:
                await store.keep_index_order(connection)
                await payload_store.delete_payloads(connection, key, released)
            for error in outcomes:
                if error is not None:
                    raise error

    async def fetch(self, tenant_id: str, blob_id: str, *, sha256: str) -> bytes:
        """A whole payload, when it is its turn. Raises NOT_FOUND, DEPENDENCY_UNAVAILABLE, and STORED_HASH_DIFFERS."""
        data = bytearray()
        async with self._fetches:
            with acting_for(tenant_id):
                async with aclosing(self.read(blob_id, offset=0, length=0)) as answers:
                    async for answer in answers:
                        data += answer.data
        if hashlib.sha256(data).hexdigest() != sha256:
            raise stored_hash_differs("a payload in the blob store is not the one that was put")
        return bytes(data)

    def read(self, blob_id: str, *, offset: int, length: int) -> AsyncGenerator[blob_pb.GetBlobResponse, None]:
        """The bytes of a payload from `offset` on, in pieces, to its end where `length` is 0."""
        peer, blobs = self._reach()
        request = blob_pb.GetBlobRequest(blob_id=blob_id, offset=offset, length=length)
        return peer.stream(blobs.GetBlob, request, timeout_seconds=_GET_SECONDS)

    def _large(self, entries: Sequence[NewEntry], policy: TenantPolicy) -> tuple[list[LargeResult], list[Stub]]:
        if self._peer is None or not policy.stub_large_tool_payloads:
            return [], []
        return (
            large_results(entries, large_payload_bytes=policy.large_payload_bytes),
            image_stubs(entries, large_payload_bytes=policy.large_payload_bytes),
        )

    async def _put_waiting(self, key: Key) -> str:
        turns = self._turns_of.setdefault(key.tenant_id, asyncio.Semaphore(_AT_ONCE_OF_TENANT))
        try:
            while await self._put_some(key, turns) or key in self._once_more:
                self._once_more.discard(key)
        except MeshError as error:
            if error.reason not in _RELEASED:
                log.warning("payloads not put", session=key.session_id, reason=error.reason)
            return error.reason
        except (psycopg.Error, PoolTimeout) as error:
            log.warning("payloads not put", session=key.session_id, error=type(error).__name__)
            return Reason.DEPENDENCY_UNAVAILABLE
        finally:
            self._once_more.discard(key)
            self._under_way.pop(key, None)
        return ""

    async def _put_some(self, key: Key, turns: asyncio.Semaphore) -> bool:
        """Puts those of some entries, when it is the tenant's turn; False where none waits.

        Raises the first error once those that could be put are known to be there.
        """
        async with turns, self._turns:
            async with self._database.transaction(key.tenant_id) as connection:
                await store.keep_index_order(connection)
                entries = await payload_store.waiting_payloads(connection, key, row_count=_ROWS, file_count=_FILES)
            if not entries:
                self._failing.pop(key, None)
                return False
            failures: list[Exception] = []
            with acting_for(key.tenant_id):
                outcomes = await asyncio.gather(
                    *(self._put_entry(key, waiting, failures) for waiting in entries.values())
                )
            put = [
                payload.blob_id
                for waiting, errors in zip(entries.values(), outcomes, strict=True)
                for payload, error in zip(waiting, errors, strict=True)
                if error is None
            ]
            async with self._database.transaction(key.tenant_id) as connection:
                await store.keep_index_order(connection)
                usable = await payload_store.mark_stored(connection, key, put)
        for stub in usable:
            full_token_count = entries[stub.seq][0].entry_token_count
            self._activities.record_later(key, _stubbed(stub, full_token_count=full_token_count))
        for seq, errors in zip(entries, outcomes, strict=True):
            for error in filter(None, errors):
                if isinstance(error, MeshError) and error.reason not in _RELEASED:
                    self._tell_failure(key, error.reason, seq)
                raise error
        return True

    async def _put_entry(
        self, key: Key, waiting: Sequence[WaitingPayload], failures: list[Exception]
    ) -> list[Exception | None]:
        """Puts payloads of one entry, whose body is read once for all; for each, what kept it from that, which goes to `failures` too."""
        async with self._bodies.hold(waiting[0].entry_bytes):
            try:
                content = await self._content(key, waiting[0].seq)
            except (MeshError, psycopg.Error, PoolTimeout) as error:
                failures.append(error)
                return [error] * len(waiting)
            turns = asyncio.Semaphore(_FILES_AT_ONCE)

            async def put(payload: WaitingPayload) -> Exception | None:
                async with turns:
                    if len(failures) >= _FAILURES:
                        return failures[0]
                    try:
                        await self._put(key, payload, content[payload.block_index])
                    except MeshError as error:
                        failures.append(error)
                        return error
                return None

            return await asyncio.gather(*map(put, waiting))

    async def _content(self, key: Key, seq: int) -> Sequence[content_pb.ContentBlock]:
        """Of one entry, which is whole as long as it has payloads that wait. Raises NOT_FOUND."""
        async with self._database.transaction(key.tenant_id) as connection:
            await store.keep_index_order(connection)
            entries = await store.read_entries(connection, key, [seq])
        if not entries:  # Deleted meanwhile.
            raise not_found("transcript", key.session_id)
        body = entries.pop().body
        if len(body) < _THREAD_BYTES:
            return pb.EntryBody.FromString(body).message.content
        return (await asyncio.to_thread(pb.EntryBody.FromString, body)).message.content

    def _tell_failure(self, key: Key, reason: Reason, seq: int) -> None:
        if self._failing.get(key) is not reason:
            self._failing[key] = reason
            failed = activity_pb.Failed(action="put_payload", reason=reason, seq=seq)
            self._activities.record_later(key, activity_pb.Activity(failed=failed))

    async def _put(self, key: Key, payload: WaitingPayload, block: content_pb.ContentBlock) -> None:
        request = blob_pb.PutBlobRequest(
            blob_id=payload.blob_id,
            session_id=key.session_id,
            data=payload_of(block) or b"",
            mime_type=payload.mime_type,
        )
        peer, blobs = self._reach()
        await peer.unary(blobs.PutBlob, request, timeout_seconds=_PUT_SECONDS)

    async def _release(self, blob_id: str) -> None:
        peer, blobs = self._reach()
        await peer.unary(blobs.ReleaseBlob, blob_pb.ReleaseBlobRequest(blob_id=blob_id), timeout_seconds=_PUT_SECONDS)

    def _reach(self) -> "tuple[Peer, BlobServiceAsyncStub]":
        if self._peer is None:
            raise MeshError(Reason.DEPENDENCY_UNAVAILABLE, "this service was not told where the blob store is")
        return self._peer, BlobServiceStub(self._peer.channel)


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
async def open_payloads(database: Database, blobs: Peer | None, activities: Activities) -> AsyncIterator[Payloads]:
    """Keeps payloads during the block, at whose end those under way are finished. Without a blob store nothing is kept and nothing is a stub."""
    async with asyncio.TaskGroup() as tasks:
        yield Payloads(database, blobs, activities, tasks)
