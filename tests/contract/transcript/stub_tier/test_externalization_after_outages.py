"""Payloads that were appended during an outage of the blob store leave the database after it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from spawnmesh.attachment_blob.v1 import blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.blob_service_pb2_grpc import (
    BlobServiceServicer,
    add_BlobServiceServicer_to_server,
)
from spawnmesh.transcript.v1 import activity_service_pb2 as activity_pb
from spawnmesh.transcript.v1.activity_service_pb2_grpc import ActivityServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.ports import free_ports
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.settings import ProcessSettings

from tests.support.serving import served, shared_settings
from tests.support.transcript.compaction import Gate
from tests.support.transcript.tables import Superuser
from tests.support.transcript.tier import NO_TAIL, long_text
from tests.support.transcript.tier_sessions import TierSession, dropped, waiting
from tests.support.transcript.workers import Workers

pytestmark = pytest.mark.usefixtures("only_tenant_with_work")


async def test_a_round_during_an_outage_leaves_payloads_for_a_later_round(
    tier_session: TierSession, away: TierSession, workers: Workers, superuser: Superuser
) -> None:
    claim = await away.session.acquire(1)
    [seq] = await away.converse(claim, long_text("alpha"))
    await away.age(claim)
    (port,) = free_ports(1)
    async with workers.open(blob_target="127.0.0.1:1", metrics_listen=f"127.0.0.1:{port}") as worker:
        await worker.work_once()
        text = await asyncio.to_thread(lambda: urlopen(f"http://127.0.0.1:{port}/metrics").read().decode())
    assert "spawnmesh_transcript_tier_failures_total 1.0" in text.splitlines()
    failed = activity_pb.Failed(
        action=activity_pb.FAILED_ACTION_PUT_PAYLOAD, reason="DEPENDENCY_UNAVAILABLE", seq=seq
    )
    assert await _failures(tier_session, 2) == [failed] * 2, "the append's and the round's"
    assert await waiting(superuser, tier_session) == 1

    async with workers.open() as worker:
        await worker.work_once()
    assert not await waiting(superuser, tier_session)
    assert list(await dropped(superuser, tier_session)) == [seq], "although nothing was appended since"
    assert await _inline_dropped_seq(superuser, tier_session) == len(await tier_session.session.entries()), (
        "no round looks again"
    )


async def test_a_payload_put_during_a_round_is_dropped_by_the_next_round(
    tier_session: TierSession, away: TierSession, workers: Workers, superuser: Superuser, keys: Path
) -> None:
    """The round passed the payload over while it was not put, and at its end no payload waits."""
    claim = await away.session.acquire(1)
    [passed_over] = await away.converse(claim, long_text("alpha"))
    [fetched] = await away.converse(claim, long_text("beta", 12_000))
    await away.age(claim)
    mark = "update payloads set is_stored = true where tenant_id = %s and seq = %s"
    await superuser.execute(mark, (tier_session.session.tenant_id, fetched))
    # The type checker regards a servicer without all RPCs as abstract. No test calls the others.
    kind: Any = _PutsNothing
    puts_nothing = kind(long_text("beta", 12_000).encode())
    blob_settings = ProcessSettings(**shared_settings("attachment-blob", keys))
    async with (
        served("attachment-blob", blob_settings, puts_nothing.open) as target,
        workers.open(blob_target=target) as worker,
    ):
        going_on = asyncio.create_task(worker.work_once())
        await puts_nothing.gate.reached.wait()
        await tier_session.context(tail=NO_TAIL)  # Puts the waiting payloads.
        async with asyncio.timeout(60):
            while await waiting(superuser, tier_session):
                await asyncio.sleep(0.02)
        puts_nothing.gate.opened.set()
        await going_on
    assert list(await dropped(superuser, tier_session)) == [fetched]
    async with workers.open() as worker:
        await worker.work_once()
    assert list(await dropped(superuser, tier_session)) == [passed_over, fetched]


class _PutsNothing(BlobServiceServicer):
    """A blob store that refuses blobs, and returns the stored ones once it is allowed to."""

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


async def _failures(tier_session: TierSession, count: int) -> list[activity_pb.Failed]:
    peer = tier_session.session.service.peer
    request = activity_pb.WatchActivitiesRequest(session_id=tier_session.session.session_id)
    found: list[activity_pb.Failed] = []
    with use_token(tier_session.session.client_token()):
        pages = peer.stream(ActivityServiceStub(peer.channel).WatchActivities, request, timeout_seconds=60)
        async with aclosing(pages):
            async for page in pages:
                found += [activity.failed for activity in page.activities if activity.HasField("failed")]
                if len(found) >= count:
                    break
    return found


async def _inline_dropped_seq(superuser: Superuser, tier_session: TierSession) -> int:
    statement = "select inline_dropped_seq from transcripts where (tenant_id, session_id) = (%s, %s)"
    rows = await superuser.execute(
        statement, (tier_session.session.tenant_id, tier_session.session.session_id)
    )
    [(seq,)] = await rows.fetchall()
    return int(seq)
