"""Many payloads are put at the same time: the process holds few of them, and no tenant delays
another."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.blob_service_pb2_grpc import (
    BlobServiceServicer,
    add_BlobServiceServicer_to_server,
)
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import current_caller
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.settings import ProcessSettings

from tests.support.serving import served, shared_settings
from tests.support.transcript.bodies import assistant
from tests.support.transcript.fixtures import Service
from tests.support.transcript.memory import MIB, highest_rss, own_process
from tests.support.transcript.tables import Superuser, rows_of
from tests.support.transcript.tier import (
    NO_TAIL,
    Tiered,
    answering,
    calling,
    long_text,
)
from tests.support.transcript.tier_sessions import TierSession, replica, waiting, with_image

SESSIONS = 4
GROWTH_LIMIT = 128 * MIB


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("sessions", "entries", "files", "file_bytes"), [(SESSIONS, 1, 30, 400_000), (2, 4, 1, 9 * MIB)]
)
async def test_a_body_is_read_once_for_all_its_files_and_few_bodies_are_in_memory(
    tier_session: TierSession,
    away: TierSession,
    superuser: Superuser,
    keys: Path,
    sessions: int,
    entries: int,
    files: int,
    file_bytes: int,
) -> None:
    appended = [tier_session.session.sibling() for _ in range(sessions)]
    for session in appended:
        other = replace(session, service=away.session.service)
        await other.create()
        for _ in range(entries):
            await other.append([with_image("look", *(os.urandom(file_bytes) for _ in range(files)))])
    assert await waiting(superuser, tier_session) == sessions * entries * files
    async with own_process(
        tier_session.session.service, keys, attachment_blob_target=tier_session.blobs.service.target
    ) as (
        own,
        process,
    ):
        async with asyncio.timeout(60):
            while True:
                with suppress(MeshError):
                    await own.session().create()
                    break
                await asyncio.sleep(0.05)
        before = process.memory_info().rss
        done = asyncio.Event()
        watching = asyncio.ensure_future(highest_rss(process, done))
        try:
            mine = [replace(session, service=own) for session in appended]
            await asyncio.gather(*(one.append([with_image("and", os.urandom(9_000))]) for one in mine))
            async with asyncio.timeout(100):
                while await waiting(superuser, tier_session):
                    await asyncio.sleep(0.1)
        finally:
            done.set()
            highest = await watching
    assert highest - before < GROWTH_LIMIT, f"grew by {(highest - before) // MIB} MiB"


async def test_a_tenant_with_slow_puts_does_not_delay_other_tenants(
    tiered: Tiered, service: Service, keys: Path
) -> None:
    # The type checker regards a servicer without all RPCs as abstract. No test calls the others.
    slow_for: Any = _SlowFor
    slow = slow_for(tiered.session.tenant_id)
    blob_settings = ProcessSettings(**shared_settings("attachment-blob", keys))
    async with (
        served("attachment-blob", blob_settings, slow.open) as target,
        replica(service, keys, target) as beside,
    ):
        for _ in range(SESSIONS):
            session = replace(tiered.session.sibling(), service=beside)
            await session.create()
            await session.append([with_image("look", os.urandom(9_000))])
        await slow.reached.wait()
        other = tiered.on(beside.session())
        await other.set_tier(1, is_on=True)
        await other.session.create()
        claim = await other.session.acquire(1)
        await other.converse(claim, long_text("a"))
        await other.session.append([assistant("end")], claim=claim)
        assert len((await other.context(tail=NO_TAIL)).stubbed) == 1
        slow.opened.set()


async def test_a_blob_store_that_refuses_is_not_called_for_every_file(
    tiered: Tiered, service: Service, keys: Path
) -> None:
    kind: Any = _Refusing
    refusing = kind()
    blob_settings = ProcessSettings(**shared_settings("attachment-blob", keys))
    async with (
        served("attachment-blob", blob_settings, refusing.open) as target,
        replica(service, keys, target) as beside,
    ):
        session = replace(tiered.session, service=beside)
        claim = await session.acquire(1)
        texts = [long_text(f"w{number}x") for number in range(40)]
        await session.append([calling("c", "read", {}), answering("c", *texts)], claim=claim)
    assert 8 <= len(refusing.blob_ids) < 16


async def test_PurgeTenant__a_payload_put_meanwhile_leaves_nothing_and_is_no_failure(
    tiered: Tiered, service: Service, keys: Path, superuser: Superuser, capsys: pytest.CaptureFixture[str]
) -> None:
    kind: Any = _Gone
    gone = kind(tiered.session.tenant_id)
    blob_settings = ProcessSettings(**shared_settings("attachment-blob", keys))
    async with (
        served("attachment-blob", blob_settings, gone.open) as target,
        replica(service, keys, target) as beside,
    ):
        session = replace(tiered.session.sibling(), service=beside)
        await session.create()
        await session.append([with_image("look", os.urandom(9_000))])
        await gone.reached.wait()
        while not (await session.purge_tenant()).done:
            pass
        gone.opened.set()
    assert await rows_of(superuser, session.tenant_id) == {"purged_tenants": 1}
    assert "payloads not put" not in capsys.readouterr().out


class _SlowFor(BlobServiceServicer):
    """A blob store that blocks the puts of one tenant until it is released."""

    def __init__(self, tenant_id: str) -> None:
        self.tenant_id = tenant_id
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def PutBlob(self, request: Any, context: Any) -> blob_pb.PutBlobResponse:
        if current_caller().tenant_id == self.tenant_id:
            self.reached.set()
            await self.opened.wait()
        return blob_pb.PutBlobResponse()

    @asynccontextmanager
    async def open(self, process: Process, settings: ProcessSettings) -> AsyncIterator[MeshServer]:
        server = build_server(process)
        add_BlobServiceServicer_to_server(self, server)
        yield server


class _Gone(_SlowFor):
    """A blob store that has purged the tenant."""

    async def PutBlob(self, request: Any, context: Any) -> blob_pb.PutBlobResponse:
        await super().PutBlob(request, context)
        raise not_found("tenant", self.tenant_id)


class _Refusing(_SlowFor):
    """A blob store that refuses every blob."""

    def __init__(self) -> None:
        super().__init__("")
        self.blob_ids: set[str] = set()

    async def PutBlob(self, request: Any, context: Any) -> blob_pb.PutBlobResponse:
        self.blob_ids.add(request.blob_id)
        raise MeshError(Reason.DEPENDENCY_UNAVAILABLE, "away")
