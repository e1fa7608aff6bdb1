"""GetTenantStatus: what each service knows and stores of a tenant, for operators."""

import pytest
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh.tenancy.v1 import tenant_status_pb2 as status_pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.session.fixtures import NOWHERE
from tests.support.session.harness import Mesh, OpenMesh, attachment
from tests.support.session.remains import Remains
from tests.support.session.worker import work_once
from tests.support.tenancy import stored_in

SERVICES = ["session", "attachment-blob", "transcript", "hook", "model-router"]
UNKNOWN, PREPARED = status_pb.PARTICIPATION_STATE_UNKNOWN, status_pb.PARTICIPATION_STATE_PREPARED
PURGING, PURGED = status_pb.PARTICIPATION_STATE_PURGING, status_pb.PARTICIPATION_STATE_PURGED


async def status_of(mesh: Mesh) -> dict[str, tenant_pb.ServiceTenantStatus]:
    request = tenant_pb.GetTenantStatusRequest(tenant_id=mesh.tenant)
    answer: tenant_pb.GetTenantStatusResponse = await mesh.operator("GetTenantStatus", request)
    assert [one.service for one in answer.services] == SERVICES
    return {one.service: one for one in answer.services}


async def test_GetTenantStatus__from_creation_to_deletion(mesh: Mesh, remains: Remains) -> None:
    nobody = Mesh(mesh.peer, mesh.keys, mesh.settings)
    assert {one.status.state for one in (await status_of(nobody)).values()} == {UNKNOWN}
    await mesh.spawn(attachments=[attachment()])
    found = await status_of(mesh)
    assert {(one.status.state, one.status.settings_version) for one in found.values()} == {(PREPARED, 1)}
    own = stored_in(found["session"].status)
    assert (own["sessions"], own["runs"], own["agents"], own["tenants"]) == (1, 1, 1, 1)
    assert stored_in(found["attachment-blob"].status)["objects"] == 1
    storage = found["attachment-blob"].status.storage
    assert (storage.stored_bytes, storage.max_stored_bytes) == (len("hello"), 100 * 1024**3)
    assert stored_in(found["transcript"].status)["transcripts"] == 1
    await mesh.delete_tenant()
    assert (await status_of(mesh))["session"].status.state == PURGING
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    for one in (await status_of(mesh)).values():
        assert (one.status.state, one.status.settings_version, stored_in(one.status)) == (PURGED, 1, {})
        assert one.status.HasField("purge_end_time")


async def test_GetTenantStatus__a_service_that_does_not_answer_has_its_error(
    mesh: Mesh, open_mesh: OpenMesh
) -> None:
    async with open_mesh(elsewhere={"hook": NOWHERE}) as cut_off:
        cut_off.tenant = mesh.tenant
        found = await status_of(cut_off)
    assert found["hook"].error_reason == reason_pb2.REASON_DEPENDENCY_UNAVAILABLE
    assert not found["hook"].HasField("status")
    assert {one.status.state for name, one in found.items() if name != "hook"} == {PREPARED}


async def test_GetTenantStatus__is_for_operators(mesh: Mesh) -> None:
    request = tenant_pb.GetTenantStatusRequest(tenant_id=mesh.tenant)
    with pytest.raises(MeshError) as caught:
        await mesh.client(TenantServiceStub(mesh.peer.channel).GetTenantStatus, request)
    assert caught.value.reason is Reason.CALLER_NOT_ALLOWED
