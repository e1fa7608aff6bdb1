"""Links between services, databases and the store are cut and slowed at random.

Meanwhile sessions are spawned and finalized. The promises hold: one session for each
request_id, one end and one announcement of each run, transcripts without a gap, and nothing
left of what failed.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_attachment_blob.app import open_dependencies
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.process import start_process
from spawnmesh_session.app import make_job_worker, make_sweeper, open_components

from tests.support.links import Link, open_link, to_address, to_postgres
from tests.support.serving import caller_at, shared_settings
from tests.support.session.drafting import draft
from tests.support.session.fixtures import OpenPeers
from tests.support.session.harness import Mesh, OpenMesh, attachment
from tests.support.session.remains import Remains
from tests.support.session.tables import assert_sound, rows
from tests.support.session.worker import work_once

SEEDS = (114,)
SPAWNERS = 4
RUNNERS = 3
STORM_SECONDS = 6.0
CALM_SECONDS = 120.0
CALL_SECONDS = 5.0

HASTY = {
    "lease_ttl_seconds": 1.5,
    "max_run_attempts": 50,
    "database_max_connections": 12,
    "spawn_deadline_seconds": 4.0,
    "step_timeout_seconds": 2.0,
    "sweep_interval_seconds": 0.3,
}

# Reasons for a caller to repeat its call.
_LATER = {
    Reason.DEPENDENCY_UNAVAILABLE,
    Reason.POOL_EXHAUSTED,
    Reason.DEADLINE_EXCEEDED,
    Reason.CONFLICT,
    Reason.SPAWN_IN_PROGRESS,
}
# Reasons of a spawn that has failed.
_FINAL = {Reason.SPAWN_FAILED, Reason.ATTACHMENTS_MATERIALIZATION_FAILED}
# Reasons that the holder of a run gets after its lease has expired.
_LOST = {Reason.RUN_LEASE_LOST, Reason.RUN_STATE, Reason.WRITER_CLAIM_LOST}


@dataclass
class Weather:
    """Cut, hold up or slow the links at random."""

    links: dict[str, Link]
    chance: random.Random
    done: Counter[str] = field(default_factory=Counter)

    async def rage(self, seconds: float) -> None:
        async with asyncio.timeout(seconds + 60):
            loop = asyncio.get_running_loop()
            end = loop.time() + seconds
            while loop.time() < end:
                await asyncio.sleep(self.chance.uniform(0.01, 0.1))
                await self._strike(*self.chance.choice(list(self.links.items())))
        for link in self.links.values():
            link.heal()

    async def _strike(self, name: str, link: Link) -> None:
        match self.chance.randrange(10):
            case 0:
                link.delay_seconds = 0.02
                await asyncio.sleep(self.chance.uniform(0.1, 0.4))
                link.heal()
                self.done["slowed"] += 1
            case 1:
                link.hold()
                await asyncio.sleep(self.chance.uniform(0.1, 1.0))
                link.heal()
                self.done["held up"] += 1
            case _:
                self.done[f"{name} cut"] += bool(link.cut())


@dataclass
class Crowd:
    """Clients that repeat unanswered calls, and runners that finalize every run that they claim."""

    mesh: Mesh
    transcript: Peer
    root: str
    begun: int = 0
    spawned: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    heard: Counter[str] = field(default_factory=Counter)

    async def spawn_during(self, happening: asyncio.Task[None]) -> None:
        """Repeat the work until the time is over, several at once."""

        async def one_after_the_other() -> None:
            while not happening.done():
                self.begun += 1
                await self.spawn(self.begun)

        await asyncio.gather(happening, *(one_after_the_other() for _ in range(SPAWNERS)))

    async def repeat_all(self) -> None:
        """Asks once more for whatever was asked for."""
        for number in range(1, self.begun + 1):
            await self.spawn(number)

    async def spawn(self, number: int) -> None:
        """Until it is known what became of it."""
        request_id = f"request-{number}"
        request = pb.SpawnSessionRequest(
            request_id=request_id,
            task=f"task {number}",
            parent_session_id=self.root,
            cleanup=session_pb2.CLEANUP_DELETE,
            attachments=[attachment("same.txt", "same"), attachment("own.txt", f"own {number}")],
        )
        try:
            answer = await self.patiently(
                lambda: self.mesh.client(self.mesh.sessions.SpawnSession, request, timeout=CALL_SECONDS)
            )
        except MeshError as error:
            if error.reason not in _FINAL:
                raise
            self._keep(
                self.refused, request_id, f"{error.reason} {error.message} {sorted(error.facts.items())}"
            )
        else:
            self._keep(self.spawned, request_id, answer.session.session_id)

    def _keep(self, answers: dict[str, str], request_id: str, answer: str) -> None:
        assert answers.setdefault(request_id, answer) == answer, "a repeat is answered as the first call was"

    @asynccontextmanager
    async def runners(self) -> AsyncIterator[None]:
        """There are some while the block runs; it ends with what goes wrong in one of them."""
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._claim_and_finalize()) for _ in range(RUNNERS)]
            yield
            for task in running:
                task.cancel()

    async def wait_all(self) -> None:
        """Until every run has ended."""
        for session_id in self.spawned.values():
            request = pb.WaitSessionRequest(session_id=session_id)
            await self.mesh.client(self.mesh.sessions.WaitSession, request, timeout=CALM_SECONDS)

    async def _claim_and_finalize(self) -> None:
        while True:
            try:
                for held in await self.mesh.claim_any(wait_seconds=0.2, limit=2):
                    if held.session.parent_session_id == self.root:
                        await self._finalize(held)
            except MeshError as error:
                self.heard[error.reason] += 1
                if error.reason not in _LATER | _LOST:
                    raise
                await asyncio.sleep(0.05)

    async def _finalize(self, held: run_pb.ClaimedRun) -> None:
        mesh, key = self.mesh, f"{held.run.run_id}:{held.run.epoch}"
        request = await self.patiently(lambda: draft(self.transcript, held, "42", key=key))
        answer = await self.patiently(lambda: mesh.run(held, mesh.runs.FinalizeRun, request))
        assert answer.HasField("accepted"), answer

    async def patiently(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Repeats a call until it is answered with something else than to come later."""
        while True:
            try:
                return await call()
            except MeshError as error:
                self.heard[error.reason] += 1
                if error.reason not in _LATER and error.status is not Status.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.05)


@asynccontextmanager
async def stormy(
    postgres: Postgres,
    s3: S3Endpoint,
    migrated: dict[str, ServiceDsn],
    open_peers: OpenPeers,
    open_mesh: OpenMesh,
) -> AsyncIterator[tuple[Mesh, dict[str, Link]]]:
    """The mesh with a link of its own on each way."""
    async with AsyncExitStack() as stack:
        links: dict[str, Link] = {}
        for snake in ("session", "attachment_blob", "transcript", "hook"):
            links[f"database of {snake}"] = await stack.enter_async_context(
                open_link(to_postgres(postgres.superuser_dsn))
            )
        links["S3"] = await stack.enter_async_context(open_link(to_address(s3.endpoint)))

        def database_of(snake: str) -> dict[str, str]:
            link = links.get(f"database of {snake}")
            if link is None:
                return {"database_url": migrated[snake].app}
            host, _, port = link.target.rpartition(":")
            return {"database_url": make_conninfo(migrated[snake].app, host=host, port=port)}

        store = {"s3_endpoint": links["S3"].target, "collect_grace_seconds": 0}
        peers = await stack.enter_async_context(open_peers(database_of, **store))
        for name in ("attachment-blob", "transcript", "hook"):
            links[f"way to {name}"] = await stack.enter_async_context(open_link(to_address(peers[name])))
        ways = {name: links[f"way to {name}"].target for name in ("attachment-blob", "transcript", "hook")}
        mesh = await stack.enter_async_context(
            open_mesh(elsewhere={**peers, **ways}, **HASTY, **database_of("session"))
        )
        await stack.enter_async_context(_sweeping(mesh))
        yield mesh, links


@asynccontextmanager
async def _sweeping(mesh: Mesh) -> AsyncIterator[None]:
    """Work as the worker does, over the same links."""
    async with (
        start_process("session", mesh.settings) as process,
        open_components(process, mesh.settings) as components,
        asyncio.TaskGroup() as tasks,
    ):
        worker = make_job_worker(components, mesh.settings)
        sweep = make_sweeper(components, mesh.settings)
        working = [
            tasks.create_task(worker.run_jobs_forever()),
            tasks.create_task(sweep.sweep_forever()),
        ]
        yield
        for task in working:
            task.cancel()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [*SEEDS, None])
async def test_what_is_promised_holds_whatever_happens_to_the_connections(
    seed: int | None,
    postgres: Postgres,
    s3: S3Endpoint,
    migrated: dict[str, ServiceDsn],
    open_peers: OpenPeers,
    open_mesh: OpenMesh,
    remains: Remains,
) -> None:
    seed = random.randrange(10**6) if seed is None else seed
    print(f"seed {seed}")
    async with (
        stormy(postgres, s3, migrated, open_peers, open_mesh) as (mesh, links),
        caller_at(links["way to transcript"].target, "transcript") as transcript,
    ):
        await mesh.create_tenant(settings=TenantSettings(max_live_child_count=1000))
        root = (await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)).session_id
        weather, crowd = Weather(links, random.Random(seed)), Crowd(mesh, transcript, root)
        async with asyncio.timeout(STORM_SECONDS + CALM_SECONDS), crowd.runners():
            await crowd.spawn_during(asyncio.create_task(weather.rage(STORM_SECONDS)))
            print(dict(weather.done), dict(crowd.heard), len(crowd.spawned), len(crowd.refused))
            await crowd.repeat_all()
            await crowd.wait_all()
        await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=root))
        await work_once(mesh.settings, remains.dsn, mesh.tenant)
        await collect(mesh, migrated["attachment_blob"], s3)
        await assert_nothing_is_lost_or_left(mesh, crowd, postgres, remains)


async def collect(mesh: Mesh, dsn: ServiceDsn, s3: S3Endpoint) -> None:
    """Removes what cut off stagings left in the bucket."""
    settings = AttachmentBlobSettings(
        **shared_settings("attachment-blob", mesh.keys),
        database_url=dsn.app,
        s3_endpoint=s3.endpoint,
        s3_access_key=SecretStr(s3.access_key),
        s3_secret_key=SecretStr(s3.secret_key),
        sts_endpoint=s3.sts_endpoint,
        sts_role_arn=s3.role_arn,
        collect_grace_seconds=0,
    )
    async with open_dependencies(settings) as on:
        counts = await on.collector.collect(mesh.tenant, dry_run=False)
    print(counts)
    assert counts.missing_object_count == 0


async def assert_nothing_is_lost_or_left(
    mesh: Mesh, crowd: Crowd, postgres: Postgres, remains: Remains
) -> None:
    assert len(crowd.spawned) + len(crowd.refused) == crowd.begun
    assert len(set(crowd.spawned.values())) == len(crowd.spawned)
    await assert_sound(postgres, mesh.tenant, crowd.root)
    known = await rows(
        postgres,
        "select session_id, request_id, state from session.sessions where tenant_id = %s",
        mesh.tenant,
    )
    children = [row for row in known if row["session_id"] != crowd.root]
    # A spawn that an outage ended gave its request_id back, and the repeat started over.
    assert {row["state"] for row in children if row["request_id"] is None} <= {"SPAWN_FAILED"}
    states = {row["request_id"]: row["state"] for row in children if row["request_id"] is not None}
    assert states == dict.fromkeys(crowd.spawned, "CLOSED") | dict.fromkeys(crowd.refused, "SPAWN_FAILED")
    runs = await rows(
        postgres,
        "select session_id, state from session.runs where tenant_id = %s and session_id <> %s",
        mesh.tenant,
        crowd.root,
    )
    assert sorted(row["session_id"] for row in runs) == sorted(crowd.spawned.values())
    assert {row["state"] for row in runs} <= {"SUCCEEDED"}
    left = await remains.of(mesh.tenant)
    assert (left["queue"], left["files"], left["objects"], left["transcripts"]) == (
        0,
        0,
        0,
        len(crowd.spawned) + 1,
    )
    written = await rows(
        postgres,
        "select session_id, array_agg(seq order by seq) as seqs, array_agg(label::text order by seq) as labels,"
        " array_agg(target_seq order by seq) as targets from transcript.entries where tenant_id = %s group by session_id",
        mesh.tenant,
    )
    for row in written:
        assert row["seqs"] == list(range(1, len(row["seqs"]) + 1))
        labels = dict(
            zip(row["targets"], row["labels"], strict=True)
        )  # The last one of each entry is what it is.
        assert list(labels.values()).count("FINAL") == (row["session_id"] != crowd.root), labels
