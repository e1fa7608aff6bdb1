"""A late worker leaves a tenant alone that was created again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1.event_pb2 import HOOK_KIND_BEFORE_SPAWN
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.session.v1 import tenant_pb2
from spawnmesh.session.v1.tenant_pb2 import AgentProfile, TenantSettings
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings
from spawnmesh_runtime.impersonation import impersonate, use_token
from spawnmesh_session.app import Components
from spawnmesh_session.clients.tenant_participants import ParticipantClient, PurgePart
from spawnmesh_session.operations.tenant_purge import TenantPurge

from tests.support.serving import caller_at, client_tokens
from tests.support.session.harness import Mesh, attachment
from tests.support.session.remains import REPORT, Remains
from tests.support.session.worker import components_of, work_once

PARTICIPANTS = ("attachment-blob", "transcript", "hook", "model-router")


class Pause:
    """Pause the n-th caller of `step` until it may continue."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def step(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.reached.set()
            await self.go_on.wait()


class PausingDatabase:
    """Reaches before each transaction."""

    def __init__(self, database: Any, pause: Pause) -> None:
        self.database = database
        self.pause = pause

    @asynccontextmanager
    async def transaction(self, tenant_id: str) -> AsyncIterator[Any]:
        await self.pause.step()
        async with self.database.transaction(tenant_id) as connection:
            yield connection

    @asynccontextmanager
    async def pipelined(self, tenant_id: str) -> AsyncIterator[Any]:
        await self.pause.step()
        async with self.database.pipelined(tenant_id) as connection:
            yield connection


class PausingParticipant:
    """Reaches before each purge."""

    def __init__(self, participant: ParticipantClient, pause: Pause) -> None:
        self.service = participant.service
        self.participant = participant
        self.pause = pause

    async def purge(self, settings_version: int) -> PurgePart:
        await self.pause.step()
        return await self.participant.purge(settings_version)


def pausing(components: Components, pause: Pause, service: str = "") -> TenantPurge:
    """The deletion as a worker does it that is held up before any step, or before it calls a service.

    Nothing is waited for.
    """
    purge = replace(components.purge, spawn_deadline=timedelta(0))
    participants: Any = tuple(
        PausingParticipant(one, pause) if service in ("", one.service) else one for one in purge.participants
    )
    database: Any = purge.database if service else PausingDatabase(purge.database, pause)
    return replace(purge, database=database, participants=participants)


async def go_on(purge: TenantPurge, tenant: str) -> None:
    """Purge as the sweep does."""
    with impersonate(tenant):
        while await purge.purge(tenant):
            pass


async def reached_or_done(pause: Pause, working: asyncio.Task[None]) -> None:
    reached = asyncio.create_task(pause.reached.wait())
    await asyncio.wait({reached, working}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    assert pause.reached.is_set() or working.done()


async def new_tenant(mesh: Mesh) -> Mesh:
    fresh = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await fresh.create_tenant()
    await fresh.spawn(attachments=[attachment()])
    return fresh


async def register_plugin(mesh: Mesh, hook_target: str) -> None:
    async with caller_at(hook_target, "hook") as hook:
        plugin = hook_pb.Plugin(
            name="gate",
            endpoint="grpc://127.0.0.1:1",
            hooks=[HOOK_KIND_BEFORE_SPAWN],
            failure_policy=hook_pb.FAILURE_POLICY_OPEN,
        )
        request = hook_pb.UpdatePluginRequest(allow_missing=True, plugin=plugin, allow_unreachable=True)
        stub: Any = HookServiceStub(hook.channel)
        with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
            await hook.unary(stub.UpdatePlugin, request, timeout_seconds=60)


async def create_anew(mesh: Mesh, hook_target: str) -> None:
    """Create the deleted tenant again, with a row in every service."""
    await mesh.create_tenant(settings=TenantSettings(transcripts=TranscriptSettings(mask_secrets=True)))
    await mesh.put_agent(AgentProfile(agent_id="analyst"))
    await register_plugin(mesh, hook_target)
    await mesh.spawn(attachments=[attachment()])


def assert_in_every_service(rows: dict[str, int]) -> None:
    assert not [table for table in rows if table.endswith(".purged_tenants")]
    assert {
        "session.agents",
        "transcript.tenants",
        "hook.plugins",
        "model_router.tenant_policies",
        "buckets",
    } <= rows.keys()


@dataclass
class Late:
    """A deleted tenant, and the worker that is held up while it purges the tenant."""

    mesh: Mesh
    pause: Pause
    working: asyncio.Task[None]


async def begin_purge(mesh: Mesh, components: Components, at: int, service: str = "") -> Late:
    """Delete a fresh tenant, and purge it until the step or the end."""
    own, pause = await new_tenant(mesh), Pause(at)
    await own.delete_tenant()
    late = Late(own, pause, asyncio.create_task(go_on(pausing(components, pause, service), own.tenant)))
    await reached_or_done(pause, late.working)
    return late


async def assert_removes_nothing(late: list[Late], remains: Remains, hook_target: str) -> None:
    """Another worker finishes the deletions, the tenants are created again, and the late go on."""
    tenants = [one.mesh.tenant for one in late]
    await work_once(late[0].mesh.settings, remains.dsn, *tenants)
    assert await remains.everywhere_of(tenants) == dict.fromkeys(tenants, REPORT)
    for one in late:
        await create_anew(one.mesh, hook_target)
    rows = await remains.everywhere_of(tenants)
    for one in late:
        assert_in_every_service(rows[one.mesh.tenant])
        one.pause.go_on.set()
        await asyncio.wait_for(one.working, 60)
    assert await remains.everywhere_of(tenants) == rows
    for one in late:
        assert (await one.mesh.tenant_state()).state == tenant_pb2.TENANT_STATE_ACTIVE


async def test_DeleteTenant__a_service_that_is_called_late_removes_nothing(
    mesh: Mesh, peers: dict[str, str], remains: Remains
) -> None:
    """It was looked whether the deletion stands; then the call was a long time on its way."""
    async with components_of(mesh.settings) as components:
        late = [await begin_purge(mesh, components, 1, service) for service in PARTICIPANTS]
        await assert_removes_nothing(late, remains, peers["hook"])
    for one in late:
        await one.mesh.spawn(attachments=[attachment("b.txt", "more")])


@pytest.mark.timeout(300)
async def test_DeleteTenant__worker_that_is_held_up_at_any_step_removes_nothing_more(
    mesh: Mesh, peers: dict[str, str], remains: Remains
) -> None:
    late: list[Late] = []
    async with components_of(mesh.settings) as components:
        for at in range(1, 100):
            one = await begin_purge(mesh, components, at)
            if one.working.done():
                break
            late.append(one)
        assert 20 < len(late) < 99, "the steps are counted no more"
        await assert_removes_nothing(late, remains, peers["hook"])
    last = late[-1].mesh  # All have the same rows as before the late worker went on.
    await last.delete_tenant()
    await work_once(mesh.settings, remains.dsn, last.tenant)
    assert await remains.everywhere(last.tenant) == REPORT
