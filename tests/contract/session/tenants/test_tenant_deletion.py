"""DeleteTenant: nothing begins, nothing remains, and other tenants are untouched."""

import asyncio
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from spawnmesh.content.v1.message_pb2 import ROLE_USER, ContentBlock, Message, Text
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1.event_pb2 import HOOK_KIND_BEFORE_SPAWN
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.model_router.v1.model_router_service_pb2 import GenerateRequest
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh.model_router.v1.routing_pb2 import RoutingPolicy
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2, tenant_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile, TenantSettings
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_postgres.long_running.store import JOB_KIND as OPERATION
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_session.app import make_job_worker

from tests.support.serving import caller_at, client_tokens
from tests.support.session.auditing import admin_of, events_of, verified
from tests.support.session.harness import Mesh, OpenMesh, attachment
from tests.support.session.plugins import Plugin, plugged
from tests.support.session.remains import REPORT, Remains
from tests.support.session.worker import components_of, make_due, work_once
from tests.support.waiting import MINUTE, time_left_in

DELETING, DELETED = tenant_pb2.TENANT_STATE_DELETING, tenant_pb2.TENANT_STATE_DELETED


async def reason_of(call: Any) -> Reason:
    with pytest.raises(MeshError) as caught:
        await call
    return caught.value.reason


async def filled(mesh: Mesh) -> run_pb.ClaimedRun:
    """Spawn a family with files: one run is held, one has ended, one is deleted; messages wait."""
    held = await mesh.claim((await mesh.spawn(attachments=[attachment()])).session_id)
    child = await mesh.spawn_as(held, attachments=[attachment("b.txt", "other")])
    await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=child.session_id))
    gone = await mesh.spawn(attachments=[attachment()])
    await mesh.client(mesh.sessions.DeleteSession, pb.DeleteSessionRequest(session_id=gone.session_id))
    await mesh.put_agent(AgentProfile(agent_id="analyst"))
    return held


async def test_DeleteTenant__refuses_at_once_kills_and_leaves_nothing_anywhere(
    mesh: Mesh, remains: Remains
) -> None:
    other = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await other.create_tenant()
    await filled(other)
    await work_once(other.settings, remains.dsn, other.tenant)
    others = await remains.everywhere(other.tenant)
    held = await filled(mesh)
    session_id = held.session.session_id

    await mesh.delete_tenant()
    begun = await mesh.tenant_state()
    assert (begun.state, begun.deletion.HasField("end_time")) == (DELETING, False)
    send = pb.SendMessageRequest(session_id=session_id, request_id="m", text="hello")
    for refused in (
        mesh.spawn(),
        mesh.spawn_as(held),
        mesh.client(mesh.sessions.SendMessage, send),
        mesh.put_agent(AgentProfile(agent_id="late")),
    ):
        assert await reason_of(refused) is Reason.UNKNOWN_TENANT
    assert await reason_of(mesh.create_tenant()) is Reason.CONFLICT
    assert mesh.tenant in await tenants(mesh)

    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    after = await mesh.tenant_state()
    assert after.state == DELETED
    deletion = after.deletion
    assert deletion.end_time.seconds >= deletion.request_time.seconds > 0
    assert (deletion.killed_run_count, deletion.deleted_session_count) == (1, 3)
    assert (deletion.deleted_transcript_count, deletion.deleted_object_count) == (3, 1)
    assert await remains.everywhere(mesh.tenant) == REPORT
    assert mesh.tenant not in await tenants(mesh)
    heartbeat = run_pb.HeartbeatRunRequest(epoch=held.run.epoch)
    assert await reason_of(mesh.run(held, mesh.runs.HeartbeatRun, heartbeat)) is Reason.RUN_LEASE_LOST
    assert await reason_of(mesh.get(session_id)) is Reason.NOT_FOUND
    assert await reason_of(mesh.spawn()) is Reason.UNKNOWN_TENANT
    assert await remains.everywhere(other.tenant) == others

    await mesh.delete_tenant()
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    assert after == await mesh.tenant_state()


async def test_DeleteTenant__purge_is_recorded_with_the_worker_as_its_actor(
    mesh: Mesh, remains: Remains
) -> None:
    await mesh.delete_tenant()
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    events = await events_of(mesh.peer, admin_of(mesh), tenant_id=mesh.tenant, method="DeleteTenant")
    (purge,) = [event for event in events if event.subject == "session-worker"]
    assert (purge.code, list(purge.resources)) == ("OK", [f"tenant_id={mesh.tenant}"])
    _, breaks, _ = await verified(mesh.peer, admin_of(mesh), mesh.tenant)
    assert list(breaks) == []


async def test_CreateTenant__of_a_deleted_one_begins_anew(mesh: Mesh, remains: Remains) -> None:
    await filled(mesh)
    await mesh.delete_tenant()
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    await mesh.create_tenant(settings=TenantSettings(max_spawn_depth=2))
    tenant = await mesh.tenant_state()
    assert (tenant.state, tenant.HasField("deletion")) == (tenant_pb2.TENANT_STATE_ACTIVE, False)
    session = await mesh.spawn(attachments=[attachment()])
    assert session.state == session_pb2.SESSION_STATE_ACTIVE
    listed = await mesh.client(mesh.sessions.ListSessions, pb.ListSessionsRequest(include_archived=True))
    assert [one.session_id for one in listed.sessions] == [session.session_id]
    await mesh.delete_tenant()
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    assert await remains.everywhere(mesh.tenant) == REPORT


async def test_CreateTenant__of_a_deleted_one_has_a_version_that_no_replica_remembers(
    mesh: Mesh, remains: Remains
) -> None:
    """Replicas remember settings by version, also those of the deleted tenant."""
    update = tenant_pb.UpdateTenantRequest(
        tenant=tenant_pb2.Tenant(tenant_id=mesh.tenant, display_name="second"),
        update_mask=FieldMask(paths=["display_name"]),
    )
    await mesh.operator("UpdateTenant", update)
    for last_version in (2, 3, 4):
        assert (await mesh.tenant_state()).settings_version == last_version
        await mesh.delete_tenant()
        await mesh.delete_tenant()  # A repeat, whose report is the same.
        await work_once(mesh.settings, remains.dsn, mesh.tenant)
        for _ in range(2):
            await mesh.create_tenant()
    masking = TenantSettings(transcripts=TranscriptSettings(mask_secrets=True))
    await mesh.delete_tenant()
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    await mesh.create_tenant(settings=masking)
    assert (
        await remains.count(mesh.tenant, "transcript.tenants where mask_secrets and settings_version = 6")
        == 1
    )


async def test_CreateTenant__of_a_deleted_one_finds_no_plugin_decision_budget_or_policy(
    mesh: Mesh, peers: dict[str, str], remains: Remains
) -> None:
    limits = RoutingPolicy(max_requests_per_minute=1)
    asked = tenant_pb.UpdateTenantRequest(
        tenant=tenant_pb2.Tenant(tenant_id=mesh.tenant, settings=TenantSettings(routing=limits)),
        update_mask=FieldMask(paths=["settings.routing"]),
    )
    async with plugged(mesh, peers, Plugin()), caller_at(peers["hook"], "hook") as hook:
        await mesh.operator(
            "UpdateTenant", asked
        )  # Version 2: a copy that stayed would outlast the new tenant's first.
        held = await mesh.claim((await mesh.spawn()).session_id)
        draft = run_pb.FinalizeRunRequest(
            epoch=held.run.epoch, draft_entry_id=new_id(IdKind.ENTRY), draft_text="done"
        )
        with pytest.raises(MeshError):  # The plugin was asked; the draft is in no transcript.
            await mesh.run(held, mesh.runs.FinalizeRun, draft)
        await time_left_in(MINUTE)
        refusals = [await generate(mesh, peers) for _ in range(2)]
        assert refusals[-1] is Reason.BUDGET_EXCEEDED
        before = await remains.everywhere(mesh.tenant)
        assert {
            "hook.plugins",
            "hook.deliveries",
            "hook.decisions",
            "model_router.budget_periods",
        } <= before.keys()

        await mesh.delete_tenant()
        await work_once(mesh.settings, remains.dsn, mesh.tenant)
        assert await remains.everywhere(mesh.tenant) == REPORT
        stub: Any = HookServiceStub(hook.channel)
        late = hook_pb.UpdatePluginRequest(
            allow_missing=True,
            plugin=hook_pb.Plugin(name="late", endpoint="grpc://127.0.0.1:1", hooks=[HOOK_KIND_BEFORE_SPAWN]),
            allow_unreachable=True,
        )
        with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
            assert (
                await reason_of(hook.unary(stub.UpdatePlugin, late, timeout_seconds=60))
                is Reason.UNKNOWN_TENANT
            )

        await mesh.create_tenant()
        with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
            assert (
                list(
                    (
                        await hook.unary(stub.ListPlugins, hook_pb.ListPluginsRequest(), timeout_seconds=60)
                    ).plugins
                )
                == []
            )
            assert (
                list(
                    (
                        await hook.unary(
                            stub.ListDeliveries, hook_pb.ListDeliveriesRequest(), timeout_seconds=60
                        )
                    ).deliveries
                )
                == []
            )
            await hook.unary(stub.UpdatePlugin, late, timeout_seconds=60)
        assert Reason.BUDGET_EXCEEDED not in [await generate(mesh, peers) for _ in range(3)]
        after = await remains.everywhere(mesh.tenant)
        assert (after["hook.plugins"], after["model_router.tenant_policies"]) == (1, 1)
        assert not {"hook.decisions", "hook.purged_tenants", "model_router.budget_periods"} & after.keys()


async def generate(mesh: Mesh, peers: dict[str, str]) -> Reason | None:
    """Why the tenant's model call was refused; the only provider is nowhere."""
    async with caller_at(peers["model-router"], "model-router") as router:
        stub: Any = ModelRouterServiceStub(router.channel)
        text = ContentBlock(text=Text(text="hello"))
        request = GenerateRequest(messages=[Message(role=ROLE_USER, content=[text])])
        with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
            try:
                async for _ in router.stream(stub.Generate, request, timeout_seconds=60.0):
                    pass
            except MeshError as error:
                return error.reason
    return None


async def test_DeleteTenant__beside_spawns_and_by_several_at_once(mesh: Mesh, remains: Remains) -> None:
    """A concurrent spawn is refused or removed."""

    async def spawn() -> bool:
        try:
            await mesh.spawn(attachments=[attachment()])
        except MeshError as error:
            if error.reason not in (Reason.UNKNOWN_TENANT, Reason.SPAWN_FAILED):
                raise
            return False
        return True

    async def sweep() -> None:
        async with components_of(mesh.settings) as components:
            for _ in range(10):
                await make_due(remains.dsn, mesh.tenant)
                await make_job_worker(components, mesh.settings).run_due(OPERATION)

    spawns = [asyncio.create_task(spawn()) for _ in range(12)]
    while not any(task.done() for task in spawns):
        await asyncio.sleep(0)
    await asyncio.gather(*(mesh.delete_tenant() for _ in range(4)))
    assert (await mesh.tenant_state()).state in (DELETING, DELETED)
    await asyncio.gather(*spawns)
    assert not await spawn()
    await asyncio.gather(*(sweep() for _ in range(3)))
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    deletion = (await mesh.tenant_state()).deletion
    assert await remains.everywhere(mesh.tenant) == REPORT
    assert deletion.deleted_session_count >= 1
    assert deletion.killed_run_count <= deletion.deleted_session_count


@pytest.mark.parametrize("peer", ["attachment-blob", "transcript", "hook", "model-router"])
async def test_DeleteTenant__waits_for_a_service_that_is_down_and_names_it(
    mesh: Mesh, open_mesh: OpenMesh, remains: Remains, peer: str
) -> None:
    await filled(mesh)
    async with open_mesh(elsewhere={peer: "127.0.0.1:1"}) as broken:
        await mesh.delete_tenant()
        async with components_of(broken.settings) as components:
            await make_due(remains.dsn, mesh.tenant)
            for _ in range(3):
                await make_due(remains.dsn, mesh.tenant)
                await make_job_worker(components, broken.settings).run_due(OPERATION)
    stalled = await mesh.tenant_state()
    assert stalled.state == DELETING
    assert stalled.deletion.stalled_by == f"{peer}: DEPENDENCY_UNAVAILABLE"
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    after = await mesh.tenant_state()
    assert (after.state, after.deletion.stalled_by) == (DELETED, "")
    assert await remains.everywhere(mesh.tenant) == REPORT


async def test_DeleteTenant__waits_until_what_was_under_way_has_settled(mesh: Mesh, remains: Remains) -> None:
    """A deletion of a session is in progress in the other services."""
    session = await mesh.spawn(attachments=[attachment()])
    async with components_of(mesh.settings) as components:
        async with components.database.transaction(mesh.tenant) as connection:
            family = await components.killer.end_family(connection, mesh.tenant, session.session_id)
            await components.deleter.mark_deleted(connection, mesh.tenant, family.members)
        await mesh.delete_tenant()
        await make_job_worker(components, mesh.settings).run_due(OPERATION)
    assert (await mesh.tenant_state()).state == DELETING
    assert (await remains.of(mesh.tenant))["objects"] == 1
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    assert await remains.everywhere(mesh.tenant) == REPORT


async def test_tenant_service_is_for_operators(mesh: Mesh) -> None:
    stub: Any = TenantServiceStub(mesh.peer.channel)
    held = await mesh.claim((await mesh.spawn()).session_id)
    for call, request in (
        (stub.DeleteTenant, tenant_pb.DeleteTenantRequest(tenant_id=mesh.tenant, request_id="r")),
        (stub.GetTenant, tenant_pb.GetTenantRequest(tenant_id=mesh.tenant)),
    ):
        assert await reason_of(mesh.client(call, request)) is Reason.CALLER_NOT_ALLOWED
        assert await reason_of(mesh.run(held, call, request)) is Reason.CALLER_NOT_ALLOWED
    assert (await mesh.tenant_state()).state == tenant_pb2.TENANT_STATE_ACTIVE


async def test_tenant_that_never_was(mesh: Mesh) -> None:
    nobody = Mesh(mesh.peer, mesh.keys, mesh.settings)
    for call in (nobody.delete_tenant(), nobody.tenant_state()):
        with pytest.raises(MeshError) as caught:
            await call
        assert (caught.value.reason, caught.value.status) == (Reason.NOT_FOUND, Status.NOT_FOUND)


async def tenants(mesh: Mesh) -> set[str]:
    return {tenant.tenant_id for page in await mesh.tenant_pages() for tenant in page.tenants}
