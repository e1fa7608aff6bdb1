"""Few long lines are in memory at once, whoever sends them, and nobody keeps a place by sending slowly."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from spawnmesh.transcript.v1 import archive_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database, open_database
from spawnmesh_transcript.activities import open_activities
from spawnmesh_transcript.import_store import Progress
from spawnmesh_transcript.import_threads import open_import_threads
from spawnmesh_transcript.importing import import_transcript
from spawnmesh_transcript.long_lines import LONG_BYTES, LongLines
from spawnmesh_transcript.payloads import open_payloads
from spawnmesh_transcript.store import Key

from tests.contract.transcript_files import HEADER, exported, file_of, message, send, send_requests, values
from tests.contract.transcript_fixtures import Service, Session, service

__all__ = ["service"]

LONG = file_of(HEADER, message(1, content="x" * (2 * LONG_BYTES)), message(2))
SHORT = file_of(HEADER, *(message(number) for number in range(1, 50)))
BEGUN = LONG[: LONG_BYTES + 1000]
PLACES = 4


@asynccontextmanager
async def _keeping_a_place(session: Session) -> AsyncIterator[None]:
    """A stream that has begun a long line, and sends no more during the block."""
    begun, over = asyncio.Event(), asyncio.Event()

    async def requests() -> AsyncIterator[pb.ImportTranscriptRequest]:
        yield pb.ImportTranscriptRequest(spec=pb.ImportSpec(session_id=session.session_id))
        yield pb.ImportTranscriptRequest(chunk=pb.ImportChunk(data=BEGUN))
        begun.set()
        await over.wait()

    sending = asyncio.create_task(send_requests(session, requests()))
    try:
        await begun.wait()
        await asyncio.sleep(0.3)  # It has its place by then, or the test asks for less than it could.
        yield
    finally:
        sending.cancel()
        over.set()
        with suppress(asyncio.CancelledError):
            await sending


async def _waits(sending: "asyncio.Task[pb.ImportTranscriptResponse]") -> bool:
    done, _ = await asyncio.wait([sending], timeout=1)
    return not done


async def test_ImportTranscript__a_tenant_has_one_long_line_at_once_and_others_have_theirs(service: Service) -> None:
    first = service.session()
    async with _keeping_a_place(first):
        second = asyncio.create_task(send(first.sibling(), LONG, chunk_bytes=500_000))
        assert await _waits(second)
        assert (await send(first.sibling(), SHORT)).state == pb.IMPORT_STATE_COMPLETE
        assert (await send(service.session(), LONG, chunk_bytes=500_000)).state == pb.IMPORT_STATE_COMPLETE
        assert not second.done()
    assert (await second).state == pb.IMPORT_STATE_COMPLETE


async def test_ImportTranscript__long_lines_of_many_tenants_wait_for_each_other(service: Service) -> None:
    others = [service.session() for _ in range(PLACES)]
    for other in others:
        await other.enter_tenant()
    async with _keeping_a_place(others[0]), _keeping_a_place(others[1]), _keeping_a_place(others[2]):
        async with _keeping_a_place(others[3]):
            late = service.session()
            sending = asyncio.create_task(send(late, LONG, chunk_bytes=500_000))
            assert await _waits(sending)
            assert (await send(late.sibling(), SHORT)).state == pb.IMPORT_STATE_COMPLETE
        assert (await sending).state == pb.IMPORT_STATE_COMPLETE
    assert values(await exported(late)) == values(LONG)


class Slow(Database):
    """Takes longer for each transaction than a sender may for a line."""

    def __init__(self, database: Database, seconds: float) -> None:
        super().__init__(database._pool, database._metrics)
        self._seconds = seconds

    @asynccontextmanager
    async def transaction(self, tenant_id: str) -> AsyncIterator[Connection]:
        await asyncio.sleep(self._seconds)
        async with super().transaction(tenant_id) as connection:
            yield connection


async def _import(
    service: Service, session: Session, chunks: list[bytes], *, pause: float, seconds: float, transaction: float = 0
) -> Progress | MeshError:
    """With so many seconds between chunks, for a line, and for each transaction."""

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
        open_activities(database) as activities,
        open_payloads(database, None, activities) as payloads,
        open_import_threads() as threads,
    ):
        threads.long_lines = LongLines(seconds=seconds)
        key = Key(session.tenant_id, session.session_id)
        try:
            return await import_transcript(Slow(database, transaction), payloads, threads, key, None, requests())
        except MeshError as error:
            return error


async def test_a_long_line_that_does_not_come_gives_its_place_up_and_the_import_goes_on(service: Service) -> None:
    fresh = service.session()
    dripping = [BEGUN, *[b"x"] * 100]
    refusal = await _import(service, fresh, dripping, pause=0.02, seconds=0.5)
    assert isinstance(refusal, MeshError)
    assert refusal.reason is Reason.DEADLINE_EXCEEDED
    assert (await send(fresh, LONG, chunk_bytes=500_000)).state == pb.IMPORT_STATE_COMPLETE


async def test_short_lines_have_no_time_and_what_is_made_of_a_long_one_takes_none(service: Service) -> None:
    slow = [SHORT[start : start + 200] for start in range(0, len(SHORT), 200)]
    short = await _import(service, service.session(), slow, pause=0.03, seconds=0.2)
    chunks = [LONG[start : start + 700_000] for start in range(0, len(LONG), 700_000)]
    long = await _import(service, service.session(), chunks, pause=0, seconds=0.4, transaction=0.5)
    for progress in (short, long):
        assert isinstance(progress, Progress)
        assert progress.state == "COMPLETE"
