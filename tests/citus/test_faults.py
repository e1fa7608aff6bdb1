"""A worker that is restarted and shards that are moved fail no run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from spawnmesh.session.v1 import session_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.status import Status
from spawnmesh_runtime.peers import Peer

from tests.support.citus.cluster import Cluster, host_of
from tests.support.serving import caller_at
from tests.support.session.calls import finalize
from tests.support.session.harness import Mesh
from tests.support.waiting import eventually

TENANTS = 6
RETRYABLE = (Status.UNAVAILABLE, Status.ABORTED, Status.RESOURCE_EXHAUSTED, Status.DEADLINE_EXCEEDED)


@pytest.fixture
async def transcript(peers: dict[str, str]) -> AsyncIterator[Peer]:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


class Load:
    """Runs of several tenants, one after the other, each from its spawn to its answer."""

    def __init__(self, meshes: list[Mesh], transcript: Peer) -> None:
        self._meshes = meshes
        self._transcript = transcript
        self._stop = asyncio.Event()
        self.ended: list[session_pb2.Session] = []
        self.refusals: list[MeshError] = []

    async def run(self, mesh: Mesh) -> None:
        while not self._stop.is_set():
            self.ended.append(await self._job(mesh))

    async def _job(self, mesh: Mesh) -> session_pb2.Session:
        request_id = uuid4().hex
        session = await self._until_answered(lambda: mesh.spawn(request_id=request_id))
        held = await self._until_answered(lambda: mesh.claim(session.session_id))
        await self._until_answered(lambda: finalize(mesh, self._transcript, held, "42"))
        found: session_pb2.Session = await self._until_answered(lambda: mesh.get(session.session_id))
        return found

    async def _until_answered(self, call: Any) -> Any:
        """Repeat a call that failed while a node was away, as clients do."""
        while True:
            try:
                return await call()
            except MeshError as refusal:
                if refusal.status not in RETRYABLE:
                    raise
                self.refusals.append(refusal)
                await asyncio.sleep(refusal.retry_after_seconds or 0.05)

    @asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for mesh in self._meshes:
                group.create_task(self.run(mesh))
            await eventually(lambda: len(self.ended) >= len(self._meshes))
            yield
            self._stop.set()


@pytest.fixture
async def load(mesh: Mesh, transcript: Peer) -> Load:
    meshes = [Mesh(mesh.peer, mesh.keys, mesh.settings) for _ in range(TENANTS)]
    await asyncio.gather(*(one.create_tenant() for one in meshes))
    return Load(meshes, transcript)


def successes(load: Load) -> int:
    return sum(one.latest_run.state == session_pb2.RUN_STATE_SUCCEEDED for one in load.ended)


async def test_worker_that_is_killed_and_started_again_fails_no_run(load: Load, cluster: Cluster) -> None:
    worker = cluster.workers[0]
    async with load.going():
        await worker.process.kill()
        seen = len(load.ended)
        await eventually(lambda: load.refusals)
        await worker.start()
        await eventually(lambda: len(load.ended) >= seen + 2 * TENANTS)
    assert successes(load) == len(load.ended)


async def test_shards_that_are_moved_fail_no_run(load: Load, cluster: Cluster) -> None:
    """Move every shard of one worker to the other and back, while runs go on."""
    one, two = cluster.workers
    async with load.going():
        for source, target in ((one, two), (two, one)):
            seen = len(load.ended)
            await asyncio.to_thread(move_shards, cluster, host_of(source), host_of(target))
            await eventually(lambda least=seen + TENANTS: len(load.ended) >= least)
    assert successes(load) == len(load.ended)


def move_shards(cluster: Cluster, source: str, target: str) -> None:
    """Move every placement, with those that are co-located, by logical replication."""
    with psycopg.connect(cluster.superuser_dsn, autocommit=True) as connection:
        shards = connection.execute(
            "select shardid from citus_shards where table_name = 'session.sessions'::regclass and nodename = %s",
            (source,),
        ).fetchall()
        for (shard,) in shards:
            connection.execute(
                "select citus_move_shard_placement(%s, %s, 5432, %s, 5432, shard_transfer_mode => 'force_logical')",
                (shard, source, target),
            )
