"""The hook service is called for the hooks that it has enabled, and for no other."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1.decision_pb2 import Deny, SpawnDecision
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.model_router.v1.routing_pb2 import RoutingPolicy
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.session_pb2 import RUN_STATE_SUCCEEDED
from spawnmesh.session.v1.tenant_pb2 import Tenant, TenantSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.ports import LOOPBACK, free_ports
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer
from spawnmesh_session.domain.job_kinds import FOLLOW_UPS

from tests.support.serving import caller_at, client_tokens
from tests.support.session.calls import finalize, send
from tests.support.session.enabled_hooks import enable, enable_shared
from tests.support.session.fixtures import NOWHERE, OpenPeers
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.plugins import Plugin, plugged
from tests.support.session.tables import forget_shared_hooks, jobs_of, rows
from tests.support.session.worker import job_worker_of
from tests.support.waiting import eventually

SPAWN = events.HOOK_KIND_BEFORE_SPAWN
FINALIZE = events.HOOK_KIND_BEFORE_AGENT_FINALIZE
STARTED = events.HOOK_KIND_SESSION_START
ENDED = events.HOOK_KIND_AGENT_END
DENY = SpawnDecision(deny=Deny(reason="not on Mondays"))


@pytest.fixture
async def _unknown_hooks(postgres: Any) -> AsyncIterator[None]:
    """Let the hook service have said nothing about all tenants, before the test and after it."""
    await forget_shared_hooks(postgres)
    yield
    await forget_shared_hooks(postgres)


@pytest.fixture
async def transcript(peers: dict[str, str]) -> AsyncIterator[Peer]:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


@pytest.fixture
async def alone(open_mesh: OpenMesh, _unknown_hooks: None) -> AsyncIterator[Mesh]:
    """The session service with a tenant, and a hook service that went away after that."""
    async with open_mesh() as created:
        await created.create_tenant()
    async with open_mesh(elsewhere={"hook": NOWHERE}) as mesh:
        alone = Mesh(mesh.peer, mesh.keys, mesh.settings)
        alone.tenant = created.tenant
        yield alone


async def is_gated(mesh: Mesh) -> bool:
    """Return whether a spawn needs the hook service, which is away."""
    try:
        await mesh.spawn()
    except MeshError as error:
        if "hook does not answer" not in error.message:
            raise
        return True
    return False


async def test_a_tenant_without_plugins_needs_no_hook_service(
    alone: Mesh, transcript: Peer, postgres: Any
) -> None:
    await enable_shared(alone)
    held = await alone.claim((await alone.spawn()).session_id)
    assert await jobs_of(postgres, alone.tenant) == []
    await finalize(alone, transcript, held)
    session = await alone.get(held.session.session_id)
    assert session.latest_run.state == RUN_STATE_SUCCEEDED
    assert await jobs_of(postgres, alone.tenant) == ["release_transcript"]
    async with job_worker_of(alone.settings) as worker:
        await worker.run_due(*FOLLOW_UPS)
    assert await jobs_of(postgres, alone.tenant) == []


async def test_EnableSharedHooks__before_it_was_called_every_hook_is_enabled(alone: Mesh) -> None:
    assert await is_gated(alone)
    await enable(alone, SPAWN, tenant=alone.tenant)  # Of this tenant alone: others are unknown.
    assert await is_gated(alone)


async def test_EnableHooks__is_for_its_tenant_alone(alone: Mesh, open_mesh: OpenMesh) -> None:
    async with open_mesh() as other:
        await other.create_tenant()
        await enable(other, SPAWN, tenant=other.tenant)
    await enable_shared(alone)
    assert not await is_gated(alone)
    alone.tenant = other.tenant
    assert await is_gated(alone)


async def test_EnableSharedHooks__hooks_stay_enabled(alone: Mesh) -> None:
    await enable_shared(alone, SPAWN)
    await enable_shared(alone)  # A replica with the file of before.
    await enable_shared(alone, FINALIZE)
    assert await is_gated(alone)


async def test_a_draft_needs_the_hook_service_only_if_its_gate_is_enabled(
    alone: Mesh, transcript: Peer
) -> None:
    await enable_shared(alone)
    held = await alone.claim((await alone.spawn()).session_id)
    await enable(alone, FINALIZE, tenant=alone.tenant)
    with pytest.raises(MeshError) as caught:
        await finalize(alone, transcript, held)
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE


@pytest.mark.parametrize(
    ("hook", "job"),
    [(STARTED, "publish_session_start"), (ENDED, "publish_run_end")],
    ids=["session_start", "agent_end"],
)
async def test_events_of_an_enabled_hook_wait_for_the_hook_service(
    alone: Mesh, transcript: Peer, postgres: Any, hook: "events.HookKind.ValueType", job: str
) -> None:
    await enable_shared(alone)
    await enable(alone, hook, tenant=alone.tenant)
    held = await alone.claim((await alone.spawn()).session_id)
    await finalize(alone, transcript, held)
    async with job_worker_of(alone.settings) as worker:
        await worker.run_due(*FOLLOW_UPS)
    assert await jobs_of(postgres, alone.tenant) == [job]


async def test_ClaimRuns__names_the_enabled_hooks_and_counts_the_messages(alone: Mesh) -> None:
    await enable_shared(alone, events.HOOK_KIND_LLM_INPUT)
    first, second = [(await alone.spawn()).session_id for _ in range(2)]
    held = await alone.claim(first)
    assert list(held.enabled_hooks) == [events.HOOK_KIND_LLM_INPUT]
    assert held.pending_message_count == 0
    await enable(alone, events.HOOK_KIND_BEFORE_TOOL_CALL, tenant=alone.tenant)
    await send(alone, second, "And now?")
    held = await alone.claim(second)
    assert set(held.enabled_hooks) == {events.HOOK_KIND_LLM_INPUT, events.HOOK_KIND_BEFORE_TOOL_CALL}
    assert held.pending_message_count == 1


async def test_ClaimRuns__says_whether_the_tenant_wants_content_in_traces(alone: Mesh) -> None:
    await enable_shared(alone)
    first, second = [(await alone.spawn()).session_id for _ in range(2)]
    assert not (await alone.claim(first)).trace_content
    settings = TenantSettings(routing=RoutingPolicy(trace_content=True))
    await alone.operator(
        "UpdateTenant",
        tenant_pb.UpdateTenantRequest(
            tenant=Tenant(tenant_id=alone.tenant, settings=settings),
            update_mask=FieldMask(paths=["settings.routing"]),
        ),
    )
    assert (await alone.claim(second)).trace_content


async def test_ClaimRuns__names_every_hook_before_they_are_known(alone: Mesh, postgres: Any) -> None:
    await enable_shared(alone)
    session_id = (await alone.spawn()).session_id
    await forget_shared_hooks(postgres)
    held = await alone.claim(session_id)
    assert set(held.enabled_hooks) == {hook for hook in events.HookKind.values() if hook}


async def test_EnableHooks__unknown_tenant(alone: Mesh) -> None:
    with pytest.raises(MeshError) as caught:
        await enable(alone, SPAWN, tenant="nobody-at-all")
    assert caught.value.reason is Reason.UNKNOWN_TENANT


async def test_EnableHooks__at_once_loses_no_hook(alone: Mesh, postgres: Any) -> None:
    await enable_shared(alone)
    kinds = [hook for hook in events.HookKind.values() if hook]
    await asyncio.gather(*(enable(alone, hook, tenant=alone.tenant) for hook in kinds))
    query = "select hooks from session.tenants where tenant_id = %s"
    (stored,) = await rows(postgres, query, alone.tenant)
    names = {events.HookKind.Name(hook).removeprefix("HOOK_KIND_") for hook in kinds}
    assert (set(stored["hooks"]), len(stored["hooks"])) == (names, len(names))


@pytest.fixture
async def told(
    open_peers: OpenPeers, open_mesh: OpenMesh, migrated: dict[str, ServiceDsn], _unknown_hooks: None
) -> AsyncIterator[tuple[Mesh, dict[str, str]]]:
    """The session service, and a hook service that tells it of plugins."""
    (port,) = free_ports(1)
    databases = {snake: {"database_url": dsn.app} for snake, dsn in migrated.items()}
    async with (
        open_peers(databases.__getitem__, session_target=f"{LOOPBACK}:{port}") as targets,
        open_mesh(elsewhere=targets, port=port) as mesh,
    ):
        await mesh.create_tenant()
        yield mesh, targets


async def test_a_plugin_gates_from_the_first_spawn_on(
    told: tuple[Mesh, dict[str, str]], postgres: Any
) -> None:
    mesh, targets = told
    await mesh.spawn()
    async with plugged(mesh, targets, Plugin(on_spawn=DENY)):
        with pytest.raises(MeshError) as caught:
            await mesh.spawn()
    assert caught.value.reason is Reason.SPAWN_REFUSED


@pytest.mark.usefixtures("_unknown_hooks")
async def test_without_the_session_service_no_plugin_is_registered(
    open_peers: OpenPeers, mesh: Mesh, migrated: dict[str, ServiceDsn]
) -> None:
    databases = {snake: {"database_url": dsn.app} for snake, dsn in migrated.items()}
    async with open_peers(databases.__getitem__, session_target=NOWHERE) as targets:
        with pytest.raises(MeshError) as caught:
            async with plugged(mesh, targets, Plugin()):
                pass
        assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
        async with caller_at(targets["hook"], "hook") as peer:
            with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
                listed = await peer.unary(
                    HookServiceStub(peer.channel).ListPlugins,
                    hook_pb.ListPluginsRequest(),
                    timeout_seconds=60,
                )
    assert list(listed.plugins) == []


async def test_the_hook_service_tells_that_it_has_no_plugin_for_all_tenants(
    told: tuple[Mesh, dict[str, str]], open_mesh: OpenMesh
) -> None:
    mesh, targets = told
    async with open_mesh(elsewhere={**targets, "hook": NOWHERE}) as other:
        other.tenant = mesh.tenant
        await eventually(lambda: _is_free(other))


async def _is_free(mesh: Mesh) -> bool:
    return not await is_gated(mesh)
