"""A worker that is restarted and shards that are moved fail no run."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar
from uuid import uuid4

import psycopg
import pytest
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_runtime.peers import Peer

from tests.support.citus.cluster import Cluster, host_of
from tests.support.serving import caller_at
from tests.support.session.drafting import draft
from tests.support.session.harness import Mesh
from tests.support.waiting import eventually

T = TypeVar("T")

TENANTS = 6
RETRYABLE = (Status.UNAVAILABLE, Status.ABORTED, Status.RESOURCE_EXHAUSTED, Status.DEADLINE_EXCEEDED)


@pytest.fixture
async def transcript(peers: dict[str, str]) -> AsyncIterator[Peer]:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


class LeaseLost(Exception):
    """The run was claimed again meanwhile."""


class Load:
    """Runs of several tenants, one after the other for each, from the spawn to the answer."""

    def __init__(self, meshes: list[Mesh], transcript: Peer) -> None:
        self._meshes = meshes
        self._transcript = transcript
        self._stopped = False
        self._done: dict[str, asyncio.Event] = {}
        self.ended: list[session_pb2.Session] = []
        self.refusals: list[MeshError] = []

    @asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        """Spawn and work for the block, and then until the last run has ended."""
        async with asyncio.TaskGroup() as group:
            runner = group.create_task(self._run_all())
            tenants = [group.create_task(self._spawn(mesh)) for mesh in self._meshes]
            await eventually(lambda: len(self.ended) >= len(self._meshes))
            yield
            self._stopped = True
            await asyncio.wait(tenants)
            runner.cancel()

    async def _spawn(self, mesh: Mesh) -> None:
        while not self._stopped:
            request_id = uuid4().hex
            session = await self._until_answered(partial(mesh.spawn, request_id=request_id))
            await self._done.setdefault(session.session_id, asyncio.Event()).wait()
            self.ended.append(await self._until_answered(partial(mesh.get, session.session_id)))

    async def _run_all(self) -> None:
        """Claim runs and finalize them, as a runner does. A lost claim is left to the next one."""
        mesh = self._meshes[0]
        async with asyncio.TaskGroup() as group:
            while True:
                for held in await self._until_answered(partial(mesh.claim_any, limit=4)):
                    group.create_task(self._finalize(mesh, held))

    async def _finalize(self, mesh: Mesh, held: run_pb.ClaimedRun) -> None:
        """Write the draft and offer it until the run ends, or belongs to another claim."""
        try:
            request = await self._until_answered(partial(draft, self._transcript, held, "42"))
            await self._until_answered(partial(mesh.run, held, mesh.runs.FinalizeRun, request))
        except LeaseLost:
            return
        self._done.setdefault(held.session.session_id, asyncio.Event()).set()

    async def _until_answered(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call that fails while a node is away, as clients do."""

        async def answer() -> T | None:
            try:
                return await call()
            except MeshError as refusal:
                self._note(refusal)
                return None

        return await eventually(answer)

    def _note(self, refusal: MeshError) -> None:
        if refusal.reason in (Reason.RUN_LEASE_LOST, Reason.WRITER_CLAIM_LOST):
            raise LeaseLost from refusal
        if refusal.status not in RETRYABLE:
            raise refusal
        self.refusals.append(refusal)


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
        try:
            await eventually(lambda: load.refusals)
        finally:
            await worker.start()
        await eventually(lambda: len(load.ended) >= seen + 2 * TENANTS)
    assert successes(load) == len(load.ended)


@pytest.mark.long_citus
async def test_shards_that_are_moved_fail_no_run(load: Load, cluster: Cluster) -> None:
    """Move every shard of one worker to the other, and rebalance the cluster, while runs go on."""
    one, two = (host_of(worker) for worker in cluster.workers)
    async with load.going():
        for move in (partial(move_shards, cluster, one, two), partial(rebalance, cluster)):
            seen = len(load.ended)
            await asyncio.to_thread(move)
            await eventually(lambda least=seen + TENANTS: len(load.ended) >= least)
    assert successes(load) == len(load.ended)
    assert set(shards_by_host(cluster)) == {one, two}


def move_shards(cluster: Cluster, source: str, target: str) -> None:
    """Move every placement, with those that are co-located.

    Not by logical replication: PostgreSQL refuses to replicate into a table whose owner is bound by
    row-level security.
    """
    with psycopg.connect(cluster.superuser_dsn, autocommit=True) as connection:
        for shard in shards_by_host(cluster)[source]:
            connection.execute(
                "select citus_move_shard_placement(%s, %s, 5432, %s, 5432, shard_transfer_mode => 'block_writes')",
                (shard, source, target),
            )
    assert set(shards_by_host(cluster)) == {target}


def rebalance(cluster: Cluster) -> None:
    """Spread the shards over the workers again, as an operator does."""
    with psycopg.connect(cluster.superuser_dsn, autocommit=True) as connection:
        connection.execute(
            "select citus_rebalance_start('by_shard_count', shard_transfer_mode => 'block_writes')"
        )
        connection.execute("select citus_rebalance_wait()")
        states = connection.execute("select state from citus_rebalance_status()").fetchall()
    assert states == [("finished",)]


def shards_by_host(cluster: Cluster) -> dict[str, list[int]]:
    """Return the shards of the sessions by the address of their worker."""
    with psycopg.connect(cluster.superuser_dsn, autocommit=True) as connection:
        placements = connection.execute(
            "select nodename, array_agg(shardid)"
            " from pg_dist_shard join pg_dist_placement using (shardid) join pg_dist_node using (groupid)"
            " where logicalrelid = 'session.sessions'::regclass group by nodename"
        )
        return dict(placements.fetchall())
