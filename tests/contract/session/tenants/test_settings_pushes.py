"""UpdateTenant pushes settings to every service, and each ends with the newest version."""

import asyncio

import pytest
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import AttachmentLimits
from spawnmesh.model_router.v1.routing_pb2 import RoutingPolicy
from spawnmesh.session.v1 import tenant_pb2
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_runtime.caller import Caller, CallerKind
from spawnmesh_session.rpc.update_tenant import update_tenant

from tests.support.session.crashing import Crash, Steps, crashing
from tests.support.session.fixtures import NOWHERE
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.remains import REPORT, Remains
from tests.support.session.tenant_updates import change, update, versions
from tests.support.session.worker import components_of, work_once

ADMIN = Caller(CallerKind.ADMIN, "test")


async def test_UpdateTenant__many_at_once_leave_the_newest_everywhere(mesh: Mesh, remains: Remains) -> None:
    async def one(count: int) -> None:
        limits = AttachmentLimits(max_file_count=count)
        policy = RoutingPolicy(max_requests_per_minute=count)
        settings = TenantSettings(attachments=limits, routing=policy)
        paths = ("settings.attachments.max_file_count", "settings.routing.max_requests_per_minute")
        await update(mesh, *paths, settings=settings)

    await asyncio.gather(*(one(count) for count in range(1, 9)))
    tenant = await mesh.tenant_state()
    assert tenant.settings_version == 9
    assert await versions(mesh, remains) == [9, 9, 9, 9]
    count = tenant.settings.attachments.max_file_count
    assert tenant.settings.routing.max_requests_per_minute == count
    assert (
        await remains.count(mesh.tenant, f"attachment_blob.attachment_tenants where max_file_count = {count}")
        == 1
    )
    assert (
        await remains.count(mesh.tenant, f"model_router.tenant_policies where requests_per_minute = {count}")
        == 1
    )
    assert await remains.count(mesh.tenant, "session.jobs where kind = 'push_settings'") == 0


@pytest.mark.parametrize(
    ("peer", "behind"),
    [
        ("attachment-blob", [1, 2, 2, 2]),
        ("transcript", [2, 1, 2, 2]),
        ("hook", [2, 2, 1, 2]),
        ("model-router", [2, 2, 2, 1]),
    ],
)
async def test_UpdateTenant__service_that_is_down_is_named_and_gets_the_push_later(
    mesh: Mesh, open_mesh: OpenMesh, remains: Remains, peer: str, behind: list[int]
) -> None:
    async with open_mesh(elsewhere={peer: NOWHERE}) as broken:
        broken.tenant = mesh.tenant
        answer = await update(broken, "display_name", display_name="Acme")
        assert list(answer.stale_services) == [peer]
        assert answer.tenant.settings_version == 2
        await work_once(broken.settings, remains.dsn, mesh.tenant)
        assert await versions(mesh, remains) == behind
        assert await remains.count(mesh.tenant, "session.jobs where kind = 'push_settings'") == 1
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    assert await versions(mesh, remains) == [2, 2, 2, 2]
    assert await remains.count(mesh.tenant, "session.jobs where kind = 'push_settings'") == 0


async def test_UpdateTenant__cut_off_between_any_two_steps_is_completed_by_the_sweep(
    mesh: Mesh, remains: Remains
) -> None:
    survived = False
    for crash_at in range(1, 30):
        state = await mesh.tenant_state()
        before = state.settings_version
        steps = Steps(crash_at)
        request = change(mesh, "display_name", display_name=f"try {crash_at}")
        async with components_of(mesh.settings) as components:
            try:
                request.tenant.etag = state.etag
                await update_tenant(request, ADMIN, crashing(components, steps).deps)
                survived = True
            except Crash:
                pass
        after = await mesh.tenant_state()
        assert after.settings_version == before + (after.display_name == f"try {crash_at}")
        await work_once(mesh.settings, remains.dsn, mesh.tenant)
        assert await versions(mesh, remains) == [after.settings_version] * 4, crash_at
        assert await remains.count(mesh.tenant, "session.jobs where true") == 0
        if survived:
            break
    assert survived


async def test_UpdateTenant__beside_a_deletion_leaves_nothing(mesh: Mesh, remains: Remains) -> None:
    """A deletion waits for a push in progress, and drops a push that was interrupted."""
    request = change(mesh, "display_name", display_name="late")
    async with components_of(mesh.settings) as components:
        with pytest.raises(Crash):  # Committed, but not pushed.
            await update_tenant(request, ADMIN, crashing(components, Steps(4)).deps)
        await mesh.delete_tenant()
        await components.purge.purge(mesh.tenant)
    assert (
        await remains.count(
            mesh.tenant, "session.tenant_deletions where step = 'SETTLE' and settle_time > now()"
        )
        == 1
    )
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    assert (await mesh.tenant_state()).state == tenant_pb2.TENANT_STATE_DELETED
    assert await remains.everywhere(mesh.tenant) == REPORT
