"""Few long lines are in memory at once, over all senders, and a slow sender loses its place."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from spawnmesh.transcript.v1 import archive_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database, open_database
from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.activity_recorder import open_activity_recorder
from spawnmesh_transcript.operations.payload_uploader import open_payload_uploader
from spawnmesh_transcript.operations.session_files.chunk_import import import_chunks
from spawnmesh_transcript.operations.session_files.import_threads import open_import_threads
from spawnmesh_transcript.operations.session_files.line_storage import Importer
from spawnmesh_transcript.operations.session_files.long_line_limiter import (
    LONG_BYTES,
    LongLineLimiter,
    LongLineSlot,
)
from spawnmesh_transcript.store.imports import ImportProgress

from tests.support.cpu_workers import cpu_workers
from tests.support.transcript.files import HEADER, exported, file_of, message, send, send_requests, values
from tests.support.transcript.fixtures import Service, Session
from tests.support.waiting import eventually

LONG = file_of(HEADER, message(1, content="x" * (2 * LONG_BYTES)), message(2))
SHORT = file_of(HEADER, *(message(number) for number in range(1, 50)))
BEGUN = LONG[: LONG_BYTES + 1000]
PLACES = 4


@pytest.fixture(autouse=True)
def holders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the tenants of the streams that have got a place, in order."""
    acquire, tenant_ids = LongLineSlot.acquire, list[str]()

    async def noted(slot: LongLineSlot) -> None:
        await acquire(slot)
        tenant_ids.append(slot._tenant_id)

    monkeypatch.setattr(LongLineSlot, "acquire", noted)
    return tenant_ids


@asynccontextmanager
async def _keeping_a_place(session: Session, holders: list[str]) -> AsyncIterator[None]:
    """A stream that has begun a long line and sends nothing more during the block."""
    over = asyncio.Event()

    async def requests() -> AsyncIterator[pb.ImportTranscriptRequest]:
        yield pb.ImportTranscriptRequest(spec=pb.ImportSpec(session_id=session.session_id))
        yield pb.ImportTranscriptRequest(chunk=pb.ImportChunk(data=BEGUN))
        await over.wait()

    sending = asyncio.create_task(send_requests(session, requests()))
    try:
        await eventually(lambda: session.tenant_id in holders)
        yield
    finally:
        sending.cancel()
        over.set()
        with suppress(asyncio.CancelledError):
            await sending


async def _waits(sending: "asyncio.Task[pb.ImportTranscriptResponse]") -> bool:
    done, _ = await asyncio.wait([sending], timeout=1)
    return not done


async def test_ImportTranscript__a_tenant_has_one_long_line_at_once_beside_those_of_others(
    service: Service, holders: list[str]
) -> None:
    first = service.session()
    async with _keeping_a_place(first, holders):
        second = asyncio.create_task(send(first.sibling(), LONG, chunk_bytes=500_000))
        assert await _waits(second)
        assert (await send(first.sibling(), SHORT)).state == pb.IMPORT_STATE_COMPLETE
        assert (await send(service.session(), LONG, chunk_bytes=500_000)).state == pb.IMPORT_STATE_COMPLETE
        assert not second.done()
    assert (await second).state == pb.IMPORT_STATE_COMPLETE


async def test_ImportTranscript__long_lines_of_many_tenants_wait_for_each_other(
    service: Service, holders: list[str]
) -> None:
    others = [service.session() for _ in range(PLACES)]
    for other in others:
        await other.enter_tenant()
    async with AsyncExitStack() as three:
        for other in others[:-1]:
            await three.enter_async_context(_keeping_a_place(other, holders))
        async with _keeping_a_place(others[-1], holders):
            late = service.session()
            sending = asyncio.create_task(send(late, LONG, chunk_bytes=500_000))
            assert await _waits(sending)
            assert (await send(late.sibling(), SHORT)).state == pb.IMPORT_STATE_COMPLETE
        assert (await sending).state == pb.IMPORT_STATE_COMPLETE
    assert values(await exported(late)) == values(LONG)


class Slow(Database):
    """Takes longer for each transaction than a sender may take for a line."""

    def __init__(self, database: Database, seconds: float) -> None:
        super().__init__(database.connections)
        self._seconds = seconds

    @asynccontextmanager
    async def transaction(self, tenant_id: str) -> AsyncIterator[Connection]:
        await asyncio.sleep(self._seconds)
        async with super().transaction(tenant_id) as connection:
            yield connection


async def _import(
    service: Service,
    session: Session,
    chunks: list[bytes],
    *,
    pause: float,
    seconds: float,
    transaction: float = 0,
) -> ImportProgress | MeshError:
    """Pause between chunks, time limit of a line, and time of each transaction, in seconds."""

    async def requests() -> AsyncIterator[pb.ImportTranscriptRequest]:
        offset = 0
        for chunk in chunks:
            yield pb.ImportTranscriptRequest(chunk=pb.ImportChunk(offset=offset, data=chunk))
            offset += len(chunk)
            await asyncio.sleep(pause)
        yield pb.ImportTranscriptRequest(finish=pb.ImportFinish())

    await session.enter_tenant()
    async with (
        open_database(service.dsn.app, name="slow", max_connections=2) as database,
        open_activity_recorder(database) as activities,
        open_payload_uploader(database, BlobStore(None), activities) as uploader,
        cpu_workers() as workers,
        open_import_threads(workers) as threads,
    ):
        threads.long_lines = LongLineLimiter(seconds=seconds)
        key = Key(session.tenant_id, session.session_id)
        try:
            return await import_chunks(
                Importer(Slow(database, transaction), BlobStore(None), uploader, threads),
                key,
                None,
                requests(),
            )
        except MeshError as error:
            return error


async def test_a_long_line_that_does_not_arrive_loses_its_place_and_the_import_continues(
    service: Service,
) -> None:
    fresh = service.session()
    dripping = [BEGUN, *[b"x"] * 100]
    refusal = await _import(service, fresh, dripping, pause=0.02, seconds=0.5)
    assert isinstance(refusal, MeshError)
    assert refusal.reason is Reason.DEADLINE_EXCEEDED
    assert (await send(fresh, LONG, chunk_bytes=500_000)).state == pb.IMPORT_STATE_COMPLETE


async def test_short_lines_have_no_time_limit_and_storing_a_long_one_does_not_count(service: Service) -> None:
    slow = [SHORT[start : start + 200] for start in range(0, len(SHORT), 200)]
    short = await _import(service, service.session(), slow, pause=0.03, seconds=0.2)
    chunks = [LONG[start : start + 700_000] for start in range(0, len(LONG), 700_000)]
    long = await _import(service, service.session(), chunks, pause=0, seconds=1.5, transaction=1.6)
    for progress in (short, long):
        assert isinstance(progress, ImportProgress)
        assert progress.state == "COMPLETE"
