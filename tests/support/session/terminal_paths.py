"""Every way in which a session can end: each brings one with a file to its end and gives its id."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.hook.v1.decision_pb2 import Deny, FinalizeDecision, Revise, SpawnDecision
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.peers import Peer
from spawnmesh_session.app import make_sweeper
from spawnmesh_session.rpc.spawn_session import parse_spawn_command

from tests.support.session.drafting import draft
from tests.support.session.harness import Mesh, OpenMesh, attachment
from tests.support.session.plugins import Plugin, plugged
from tests.support.session.worker import components_of, sweep_all

NOWHERE = "127.0.0.1:1"


@dataclass(frozen=True, slots=True)
class Stage:
    """A tenant with the clients and services that can end its session."""

    mesh: Mesh
    open_mesh: OpenMesh
    transcript: Peer
    peers: dict[str, str]
    cleanup: "session_pb2.Cleanup.ValueType"

    def fields(self, **more: Any) -> dict[str, Any]:
        return {"attachments": [attachment()], "cleanup": self.cleanup, **more}

    async def spawn(self, **more: Any) -> str:
        session = await self.mesh.spawn(**self.fields(**more))
        assert session.receipt.count == 1
        return session.session_id

    async def only_session(self) -> str:
        listed = await self.mesh.client(self.mesh.sessions.ListSessions, pb.ListSessionsRequest())
        [session] = listed.sessions
        return str(session.session_id)

    async def refused(self, mesh: Mesh | None = None) -> str:
        with pytest.raises(MeshError):
            await (mesh or self.mesh).spawn(**self.fields())
        return await self.only_session()

    async def kill(self, session_id: str) -> None:
        await self.mesh.client(self.mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session_id))


async def succeeded(stage: Stage) -> str:
    session_id = await stage.spawn()
    held = await stage.mesh.claim(session_id)
    answer = await stage.mesh.run(
        held, stage.mesh.runs.FinalizeRun, await draft(stage.transcript, held, "42")
    )
    assert answer.HasField("accepted")
    return session_id


async def failed(stage: Stage) -> str:
    held = await stage.mesh.claim(await stage.spawn())
    request = run_pb.FailRunRequest(epoch=held.run.epoch, reason=reason_pb2.REASON_RUNNER_ERROR, message="no")
    await stage.mesh.run(held, stage.mesh.runs.FailRun, request)
    return held.session.session_id


async def killed(stage: Stage) -> str:
    session_id = await stage.spawn()
    await stage.kill(session_id)
    return session_id


async def killed_with_its_parent(stage: Stage) -> str:
    parent = await stage.mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    between = await stage.mesh.spawn(parent_session_id=parent.session_id)
    session_id = await stage.spawn(parent_session_id=between.session_id)
    await stage.kill(parent.session_id)
    return session_id


async def timed_out(stage: Stage) -> str:
    request = pb.SpawnSessionRequest()
    request.run_timeout.FromMilliseconds(1)
    session_id = await stage.spawn(run_timeout=request.run_timeout)
    async with components_of(stage.mesh.settings) as components:
        await sweep_all(make_sweeper(components, stage.mesh.settings))
    assert (await stage.mesh.get(session_id)).latest_run.state == session_pb2.RUN_STATE_TIMED_OUT
    return session_id


async def lost_by_every_runner(stage: Stage) -> str:
    async with stage.open_mesh(max_run_attempts=1, lease_ttl_seconds=0.001) as brief:
        brief.tenant = stage.mesh.tenant
        session_id = str((await brief.spawn(**stage.fields())).session_id)
        await brief.claim(session_id)
    async with components_of(brief.settings) as components:
        await sweep_all(make_sweeper(components, brief.settings))
    assert (await stage.mesh.get(session_id)).latest_run.error_reason == reason_pb2.REASON_ATTEMPTS_EXHAUSTED
    return session_id


async def revised_until_the_cap(stage: Stage) -> str:
    session_id = await stage.spawn()
    held = await stage.mesh.claim(session_id)
    revise = FinalizeDecision(revise=Revise(reason="shorter"))
    async with plugged(stage.mesh, stage.peers, Plugin(on_finalize=revise)):
        answers = [
            await stage.mesh.run(
                held, stage.mesh.runs.FinalizeRun, await draft(stage.transcript, held, f"{n}")
            )
            for n in range(4)
        ]
    assert [answer.WhichOneof("outcome") for answer in answers] == ["revise", "revise", "revise", "accepted"]
    return session_id


async def refused_by_a_hook(stage: Stage) -> str:
    async with plugged(stage.mesh, stage.peers, Plugin(on_spawn=SpawnDecision(deny=Deny(reason="no")))):
        return await stage.refused()


async def killed_while_spawning(stage: Stage) -> str:
    async with plugged(stage.mesh, stage.peers, Plugin(meanwhile=stage.kill)):
        return await stage.refused()


async def not_provisioned_after_staging(stage: Stage) -> str:
    async with stage.open_mesh(elsewhere={"transcript": NOWHERE}) as broken:
        broken.tenant = stage.mesh.tenant
        return await stage.refused(broken)


class BrokenCommit:
    """A database of which the n-th transaction is rolled back at its end."""

    def __init__(self, database: Database, broken: int) -> None:
        self.database = database
        self.left = broken

    def transaction(self, tenant_id: str) -> AbstractAsyncContextManager[Any]:
        return self._broken(self.database.transaction(tenant_id))

    def pipelined(self, tenant_id: str) -> AbstractAsyncContextManager[Any]:
        return self._broken(self.database.pipelined(tenant_id))

    @asynccontextmanager
    async def _broken(self, transaction: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
        self.left -= 1
        async with transaction as connection:
            yield connection
            if self.left == 0:
                raise psycopg.OperationalError("the connection was lost")


async def not_activated_although_all_was_ready(stage: Stage) -> str:
    """Files attached and the task written; the third transaction would have made it run."""
    mesh = stage.mesh
    request = pb.SpawnSessionRequest(request_id="activate", task="count", **stage.fields())
    command = parse_spawn_command(request, None)
    async with components_of(mesh.settings) as components:
        broken: Any = BrokenCommit(components.database, 3)
        with impersonate(mesh.tenant), pytest.raises(MeshError):
            await replace(components.spawn_saga, database=broken).spawn(mesh.tenant, command)
    return await stage.only_session()


async def archived(stage: Stage) -> str:
    """Archive a session that is open and idle."""
    session_id = await stage.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    held = await stage.mesh.claim(session_id)
    await stage.mesh.run(held, stage.mesh.runs.FinalizeRun, await draft(stage.transcript, held, "42"))
    assert (await stage.mesh.get(session_id)).state == session_pb2.SESSION_STATE_ACTIVE
    await stage.mesh.client(
        stage.mesh.sessions.ArchiveSession, pb.ArchiveSessionRequest(session_id=session_id)
    )
    return session_id


async def deleted(stage: Stage) -> str:
    session_id = await stage.spawn()
    await stage.mesh.client(stage.mesh.sessions.DeleteSession, pb.DeleteSessionRequest(session_id=session_id))
    return session_id


async def deleted_with_its_parent(stage: Stage) -> str:
    parent = await stage.mesh.spawn()
    session_id = await stage.spawn(parent_session_id=parent.session_id)
    await asyncio.gather(
        *(
            stage.mesh.client(
                stage.mesh.sessions.DeleteSession, pb.DeleteSessionRequest(session_id=parent.session_id)
            )
            for _ in range(3)
        )
    )
    return session_id


async def deleted_with_its_tenant(stage: Stage) -> str:
    session_id = await stage.spawn()
    await stage.mesh.delete_tenant()
    return session_id


Path = Callable[[Stage], Awaitable[str]]
ENDED: list[Path] = [
    succeeded, failed, killed, killed_with_its_parent, timed_out, lost_by_every_runner, revised_until_the_cap, archived,
]  # fmt: skip
UNDONE: list[Path] = [
    refused_by_a_hook, killed_while_spawning, not_provisioned_after_staging, not_activated_although_all_was_ready,
]  # fmt: skip
GONE: list[Path] = [deleted, deleted_with_its_parent, deleted_with_its_tenant]
