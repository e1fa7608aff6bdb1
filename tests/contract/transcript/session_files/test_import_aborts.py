"""The rows of an import that cannot continue are removed, and no row of a later import."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

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

from tests.support.cpu_workers import cpu_workers
from tests.support.transcript.files import HEADER, exported, file_of, go_on, message, send, values
from tests.support.transcript.fixtures import Service, Session, refused
from tests.support.transcript.tables import Superuser, rows_of

GOOD = file_of(HEADER, *(message(number) for number in range(1, 20)))
BAD = file_of(HEADER, message(1), "no json")


class Held(Database):
    """A replica that stops before a transaction, when `asked` matches, until it is released."""

    def __init__(self, database: Database, asked: Callable[[], Awaitable[bool]]) -> None:
        super().__init__(database.connections)
        self._asked = asked
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    @asynccontextmanager
    async def transaction(self, tenant_id: str) -> AsyncIterator[Connection]:
        if not self.reached.is_set() and await self._asked():
            self.reached.set()
            await self.go.wait()
        async with super().transaction(tenant_id) as connection:
            yield connection


async def _import_malformed(database: Database, session: Session) -> None:
    async def requests() -> AsyncIterator[pb.ImportTranscriptRequest]:
        yield pb.ImportTranscriptRequest(chunk=pb.ImportChunk(data=BAD))
        yield pb.ImportTranscriptRequest(finish=pb.ImportFinish())

    async with (
        open_activity_recorder(database) as activities,
        open_payload_uploader(database, BlobStore(None), activities) as uploader,
        cpu_workers() as workers,
        open_import_threads(workers) as threads,
    ):
        key = Key(session.tenant_id, session.session_id)
        with refused(Reason.IMPORT_MALFORMED):
            await import_chunks(Importer(database, BlobStore(None), uploader, threads), key, None, requests())


@asynccontextmanager
async def _held_in_its_removal(
    service: Service, session: Session, superuser: Superuser
) -> AsyncIterator[None]:
    """Another replica aborts an import of the session, and removes its rows only after the
    block."""

    async def is_aborted() -> bool:
        states = await superuser.execute(
            "select state from imports where session_id = %s", (session.session_id,)
        )
        return await states.fetchone() == ("ABORTED",)

    async with open_database(service.dsn.app, name="other", max_connections=2) as database:
        held = Held(database, is_aborted)
        importing = asyncio.create_task(_import_malformed(held, session))
        async with asyncio.timeout(60):
            await held.reached.wait()
        yield
        held.go.set()
        await importing


async def test_ImportTranscript__a_finished_import_survives_the_removal_of_an_earlier_one(
    service: Service, superuser: Superuser
) -> None:
    fresh = service.session()
    await fresh.enter_tenant()
    async with _held_in_its_removal(service, fresh, superuser):
        assert (await send(fresh, GOOD)).state == pb.IMPORT_STATE_COMPLETE
    assert values(await exported(fresh)) == values(GOOD)


async def test_ImportTranscript__an_unfinished_import_survives_the_removal_of_an_earlier_one(
    service: Service, superuser: Superuser
) -> None:
    fresh = service.session()
    await fresh.enter_tenant()
    async with _held_in_its_removal(service, fresh, superuser):
        assert (await send(fresh, GOOD[: GOOD.index(b"m10")], finish=False)).durable_bytes > 0
    assert (await go_on(fresh, GOOD)).entry_count == 20
    assert values(await exported(fresh)) == values(GOOD)


async def test_ImportTranscript__a_good_file_is_stored_beside_a_malformed_one(service: Service) -> None:
    """Two clients import with one session id: the good file is stored, whatever happens to the
    malformed one."""
    bad = file_of(HEADER, *(message(number) for number in range(1, 3_000)), "no json")

    for _ in range(5):
        fresh = service.session()
        await fresh.enter_tenant()
        await send(fresh, bad[: -len("no json\n")], chunk_bytes=200_000, finish=False)
        told = await asyncio.gather(
            go_on(fresh, bad, chunk_bytes=200_000), _until_taken(fresh), return_exceptions=True
        )
        assert isinstance(told[0], MeshError)
        assert told[0].reason in (
            Reason.IMPORT_MALFORMED,
            Reason.IMPORT_OFFSET_DIFFERS,
            Reason.IMPORT_CONTENT_DIFFERS,
        )
        assert told[1] is None, told[1]
        assert values(await exported(fresh)) == values(GOOD)


async def _until_taken(session: Session) -> None:
    """Send the good file until it is stored; the malformed one is in its way at first."""
    in_the_way = (Reason.IMPORT_OFFSET_DIFFERS, Reason.IMPORT_CONTENT_DIFFERS, Reason.NOT_FOUND)
    is_repeat = False
    async with asyncio.timeout(60):
        while True:
            try:
                await send(session, GOOD)
                return
            except MeshError as error:
                if error.reason is Reason.ALREADY_EXISTS and is_repeat:
                    return  # An attempt stored it, whose answer was about the malformed file.
                if error.reason not in in_the_way:
                    raise
            is_repeat = True
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("wait_seconds", [0.02, 0.1, 0.2, 0.4])
async def test_DeleteTranscript__of_an_import_in_progress(
    service: Service, superuser: Superuser, wait_seconds: float
) -> None:
    """They do not deadlock, and only the row of the deleted transcript remains."""
    data = file_of(HEADER, *(message(number, content="x" * 900) for number in range(1, 2_500)))
    for _ in range(3):
        fresh = service.session()
        await fresh.enter_tenant()
        importing = asyncio.create_task(send(fresh, data, chunk_bytes=100_000))
        await asyncio.sleep(wait_seconds)
        await fresh.delete()
        (end,) = await asyncio.gather(importing, return_exceptions=True)
        assert isinstance(end, pb.ImportTranscriptResponse) or (
            isinstance(end, MeshError) and end.reason is Reason.TRANSCRIPT_DELETED
        ), end
        left = await rows_of(superuser, fresh.tenant_id)
        assert left == {"tenants": 1, "tenant_work": 1, "transcripts": 1}
