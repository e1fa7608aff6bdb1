"""Payloads that could not be put while the blob store was away leave the database all the same, once it is back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from psycopg import AsyncConnection
from spawnmesh.attachment_blob.v1 import blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.blob_service_pb2_grpc import BlobServiceServicer, add_BlobServiceServicer_to_server
from spawnmesh.transcript.v1 import activity_service_pb2 as activity_pb
from spawnmesh.transcript.v1.activity_service_pb2_grpc import ActivityServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.ports import free_ports
from spawnmesh_runtime.acting import acting_with_token
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.settings import ProcessSettings

from tests.contract.attachment_blob_fixtures import blobs
from tests.contract.serving import served, shared_settings
from tests.contract.test_transcript_worker import Workers, others_had_their_turn, workers
from tests.contract.transcript_cold import Cold, away, cold, dropped, waiting
from tests.contract.transcript_compaction import Gate
from tests.contract.transcript_fixtures import service, superuser
from tests.contract.transcript_tier import NO_TAIL, long_text, tier_service, tiered

__all__ = [
    "away",
    "blobs",
    "cold",
    "others_had_their_turn",
    "service",
    "superuser",
    "tier_service",
    "tiered",
    "workers",
]

Superuser = AsyncConnection[tuple[Any, ...]]


async def test_a_round_without_the_blob_store_leaves_what_waits_to_be_dropped_by_a_later_one(
    cold: Cold, away: Cold, workers: Workers, superuser: Superuser
) -> None:
    claim = await away.session.acquire(1)
    [seq] = await away.converse(claim, long_text("alpha"))
    await away.age(claim)
    (port,) = free_ports(1)
    async with workers.open(blob_target="127.0.0.1:1", metrics_listen=f"127.0.0.1:{port}") as worker:
        await worker.work_once()
        text = await asyncio.to_thread(lambda: urlopen(f"http://127.0.0.1:{port}/metrics").read().decode())
    assert "spawnmesh_transcript_tier_failures_total 1.0" in text.splitlines()
    failed = activity_pb.Failed(action="put_payload", reason="DEPENDENCY_UNAVAILABLE", seq=seq)
    assert await _failures(cold, 2) == [failed] * 2, "the append's and the round's"
    assert await waiting(superuser, cold) == 1

    async with workers.open() as worker:
        await worker.work_once()
    assert not await waiting(superuser, cold)
    assert list(await dropped(superuser, cold)) == [seq], "although nothing was appended since"
    assert await _cooled_seq(superuser, cold) == len(await cold.session.entries()), "no round looks again"


async def test_what_is_put_while_a_round_goes_on_is_dropped_by_the_next(
    cold: Cold, away: Cold, workers: Workers, superuser: Superuser, keys: Path
) -> None:
    """It was passed over when it waited, and at the end of the round nothing waits."""
    claim = await away.session.acquire(1)
    [passed_over] = await away.converse(claim, long_text("alpha"))
    [fetched] = await away.converse(claim, long_text("beta", 12_000))
    await away.age(claim)
    mark = "update payloads set is_stored = true where tenant_id = %s and seq = %s"
    await superuser.execute(mark, (cold.session.tenant_id, fetched))
    kind: Any = _PutsNothing  # To the type checker a peer with RPCs left out is abstract; nobody calls those.
    puts_nothing = kind(long_text("beta", 12_000).encode())
    blob_settings = ProcessSettings(**shared_settings("attachment-blob", keys))
    async with (
        served("attachment-blob", blob_settings, puts_nothing.open) as target,
        workers.open(blob_target=target) as worker,
    ):
        going_on = asyncio.create_task(worker.work_once())
        await puts_nothing.gate.reached.wait()
        await cold.context(tail=NO_TAIL)  # Puts what waits.
        async with asyncio.timeout(10):
            while await waiting(superuser, cold):
                await asyncio.sleep(0.02)
        puts_nothing.gate.opened.set()
        await going_on
    assert list(await dropped(superuser, cold)) == [fetched]
    async with workers.open() as worker:
        await worker.work_once()
    assert list(await dropped(superuser, cold)) == [passed_over, fetched]


class _PutsNothing(BlobServiceServicer):
    """A blob store that takes nothing, and gives what it has once it may."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.gate = Gate()

    async def PutBlob(self, request: Any, context: Any) -> Any:
        raise MeshError(Reason.DEPENDENCY_UNAVAILABLE, "away")

    async def GetBlob(self, request: Any, context: Any) -> AsyncIterator[blob_pb.GetBlobResponse]:
        await self.gate()
        yield blob_pb.GetBlobResponse(data=self.data)

    @asynccontextmanager
    async def open(self, process: Process, settings: ProcessSettings) -> AsyncIterator[MeshServer]:
        server = build_server(process)
        add_BlobServiceServicer_to_server(self, server)
        yield server


async def _failures(cold: Cold, count: int) -> list[activity_pb.Failed]:
    peer = cold.session.service.peer
    request = activity_pb.WatchActivitiesRequest(session_id=cold.session.session_id)
    found: list[activity_pb.Failed] = []
    with acting_with_token(cold.session.client_token()):
        pages = peer.stream(ActivityServiceStub(peer.channel).WatchActivities, request, timeout_seconds=10)
        async with aclosing(pages):
            async for page in pages:
                found += [activity.failed for activity in page.activities if activity.HasField("failed")]
                if len(found) >= count:
                    break
    return found


async def _cooled_seq(superuser: Superuser, cold: Cold) -> int:
    statement = "select cooled_seq from transcripts where (tenant_id, session_id) = (%s, %s)"
    rows = await superuser.execute(statement, (cold.session.tenant_id, cold.session.session_id))
    [(seq,)] = await rows.fetchall()
    return int(seq)
