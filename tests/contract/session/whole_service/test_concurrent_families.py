"""All operations on a family of sessions at once: no deadlock, no lost end."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.process import start_process
from spawnmesh_session.app import make_sweeper, open_components

from tests.support.serving import caller_at
from tests.support.session.drafting import draft
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.tables import assert_sound, rows
from tests.support.waiting import eventually

_OFTEN_ENOUGH = {"run": 20, "spawn": 12, "send": 8, "kill": 6}
"""Every operation is repeated until each of these was done more often."""
_EXPECTED = {
    Reason.CHILDREN_LIMIT_EXCEEDED,
    Reason.SESSION_CLOSED,
    Reason.RUN_LEASE_LOST,
    Reason.RUN_STATE,
    Reason.WRITER_CLAIM_LOST,
    Reason.SPAWN_FAILED,  # killed on the way
}


class Family:
    """A root that is open, children that come and go, and everyone who has to do with them."""

    def __init__(self, mesh: Mesh, transcript: Peer, chance: random.Random) -> None:
        self.mesh = mesh
        self.transcript = transcript
        self.chance = chance
        self.members: list[str] = []
        self.held: list[run_pb.ClaimedRun] = []
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def has_done_enough(self) -> bool:
        return all(self.done[name] > count for name, count in _OFTEN_ENOUGH.items())

    async def over_and_over(self, name: str, act: Callable[[], Awaitable[object]]) -> None:
        while not self.has_done_enough():
            try:
                await act()
                self.done[name] += 1
            except MeshError as error:
                self.refused[error.reason] += 1
                if error.reason not in _EXPECTED:
                    raise
            await asyncio.sleep(0)

    async def spawn(self) -> None:
        held = self.chance.choice(self.held) if self.held else None
        parent = held.session.session_id if held and self.chance.random() < 0.5 else self.members[0]
        child = await self.mesh.spawn(parent_session_id=parent)
        self.members.append(child.session_id)

    async def run(self) -> None:
        for held in await self.mesh.claim_any(wait_seconds=0.2, limit=4):
            if held.session.session_id in self.members:
                self.held.append(held)
                await self.work(held)
                self.held.remove(held)

    async def work(self, held: run_pb.ClaimedRun) -> None:
        mesh, epoch = self.mesh, held.run.epoch
        try:
            match self.chance.randrange(6):
                case 0:
                    await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=epoch))
                case 1:
                    failure = run_pb.FailRunRequest(
                        epoch=epoch, reason=reason_pb2.REASON_RUNNER_ERROR, message="no"
                    )
                    await mesh.run(held, mesh.runs.FailRun, failure)
                case 2:
                    return  # Lost: the lease runs out.
                case _:
                    await self.finalize(held)
        except MeshError as error:
            self.refused[error.reason] += 1
            if error.reason not in _EXPECTED:
                raise

    async def finalize(self, held: run_pb.ClaimedRun) -> None:
        mesh, epoch = self.mesh, held.run.epoch
        while True:
            await mesh.run(held, mesh.runs.HeartbeatRun, run_pb.HeartbeatRunRequest(epoch=epoch))
            waiting = (await mesh.run(held, mesh.runs.ListInbox, run_pb.ListInboxRequest())).messages
            if waiting:
                taken = run_pb.AcknowledgeInboxRequest(epoch=epoch, keys=[message.key for message in waiting])
                await mesh.run(held, mesh.runs.AcknowledgeInbox, taken)
            request = await draft(self.transcript, held, "42")
            answers = await asyncio.gather(
                *(mesh.run(held, mesh.runs.FinalizeRun, request) for _ in range(2))
            )
            if all(answer.HasField("accepted") for answer in answers):
                return

    async def send(self) -> None:
        member = self.chance.choice(self.members[-8:])
        request = pb.SendMessageRequest(session_id=member, request_id=uuid4().hex, text="hello")
        await self.mesh.client(self.mesh.sessions.SendMessage, request)

    async def kill(self) -> None:
        """Kill one of the newest members, unless more were killed than spawned."""
        await eventually(lambda: self.done["spawn"] >= self.done["kill"] or self.has_done_enough())
        member = self.chance.choice(self.members[-8:])
        if member != self.members[0]:
            await self.mesh.client(self.mesh.sessions.KillSession, pb.KillSessionRequest(session_id=member))


async def deadlocks(postgres: Any) -> int:
    [row] = await rows(
        postgres, "select deadlocks from pg_stat_database where datname = 'spawnmesh'"
    )  # The server counts each transaction that it aborts.
    return int(row["deadlocks"])


async def backends(postgres: Any) -> set[int]:
    """Return the server's processes for connections of the session service.

    A process adds its counts to the statistics before it leaves this list.
    """
    found = await rows(postgres, "select pid from pg_stat_activity where usename = 'session'")
    return {row["pid"] for row in found}


@pytest.mark.timeout(90)
async def test_concurrent_operations_end_each_run_once_and_announce_it_once(
    open_mesh: OpenMesh, peers: dict[str, str], postgres: Any
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    before, others = await deadlocks(postgres), await backends(postgres)
    settings = {"lease_ttl_seconds": 0.5, "database_max_connections": 12, "max_run_attempts": 2}
    async with (
        open_mesh(**settings) as mesh,
        caller_at(peers["transcript"], "transcript") as transcript,
        start_process("session", mesh.settings) as process,
        open_components(process, mesh.settings) as components,
    ):
        sweep = make_sweeper(components, mesh.settings)
        await mesh.create_tenant(settings=TenantSettings(max_live_child_count=20))
        family = Family(mesh, transcript, random.Random(seed))
        family.members.append((await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)).session_id)
        actors = [
            ("spawn", family.spawn, 2),
            ("run", family.run, 6),
            ("send", family.send, 2),
            ("kill", family.kill, 2),
        ]
        async with asyncio.TaskGroup() as acting:
            for name, act, count in (*actors, ("sweep", sweep.end_lost_runs, 1)):
                for _ in range(count):
                    acting.create_task(family.over_and_over(name, act))
        await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=family.members[0]))
        ours = await backends(postgres) - others
        assert ours
    print(dict(family.done), dict(family.refused))

    async def has_published_its_counts() -> bool:
        return not ours & await backends(postgres)

    await eventually(has_published_its_counts)
    assert await deadlocks(postgres) == before
    await assert_sound(postgres, mesh.tenant, family.members[0])
