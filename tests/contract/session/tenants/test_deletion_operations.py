"""The operations of DeleteTenant: followed, repeated, joined by others, and finished after crashes."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from google.longrunning import operations_pb2, operations_pb2_grpc
from google.longrunning.operations_pb2 import Operation
from spawnmesh.operations.v1 import operation_service_pb2 as rpc
from spawnmesh.operations.v1.operation_service_pb2 import OperationMetadata
from spawnmesh.operations.v1.operation_service_pb2_grpc import OperationServiceStub
from spawnmesh.session.v1 import tenant_pb2
from spawnmesh.session.v1.tenant_service_pb2 import DeleteTenantRequest, DeleteTenantResponse
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_postgres.jobs.worker import JobWorker
from spawnmesh_postgres.long_running.store import JOB_KIND
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_session.app import Components, make_job_worker
from spawnmesh_session.operations.tenant_purge import TenantPurge

from tests.support.serving import client_tokens
from tests.support.session.harness import Mesh, OpenMesh, attachment
from tests.support.session.remains import REPORT, Remains
from tests.support.session.worker import components_of, make_due, work_once

pytestmark = pytest.mark.timeout(120)
DELETING, DELETED = tenant_pb2.TENANT_STATE_DELETING, tenant_pb2.TENANT_STATE_DELETED


@contextmanager
def refused(reason: Reason) -> Iterator[dict[str, Any]]:
    """Expect a refusal; its facts are there after the block."""
    facts: dict[str, Any] = {}
    with pytest.raises(MeshError) as caught:
        yield facts
    assert caught.value.reason is reason
    facts.update(caught.value.facts)


async def call(mesh: Mesh, method: str, **fields: Any) -> Any:
    """Call an RPC of OperationService as an operator of the mesh."""
    request = getattr(rpc, f"{method}Request")(**fields)
    with use_token(client_tokens(mesh.keys).admin_token("operator", 600)):
        stub = OperationServiceStub(mesh.peer.channel)
        return await mesh.peer.unary(getattr(stub, method), request, timeout_seconds=60)


async def get(mesh: Mesh, operation: Operation) -> Operation:
    found: Operation = await call(mesh, "GetOperation", name=operation.name)
    return found


def metadata_of(operation: Operation) -> OperationMetadata:
    metadata = OperationMetadata()
    assert operation.metadata.Unpack(metadata)
    return metadata


def reported(operation: Operation) -> tenant_pb2.Tenant:
    """The tenant in the response, or in the partial one."""
    packed = operation.response if operation.done else metadata_of(operation).partial_response
    response = DeleteTenantResponse()
    assert packed.Unpack(response)
    return response.tenant


def request_of(operation: Operation) -> DeleteTenantRequest:
    request = DeleteTenantRequest()
    assert metadata_of(operation).request.Unpack(request)
    return request


async def family(mesh: Mesh) -> None:
    root = await mesh.spawn(attachments=[attachment()])
    await mesh.spawn_as(await mesh.claim(root.session_id))


async def test_DeleteTenant__operation_outlives_the_tenant_and_has_its_counts(
    mesh: Mesh, remains: Remains
) -> None:
    await family(mesh)
    started = await mesh.delete_tenant("the-request")
    assert started.name.startswith(f"services/session/tenants/{mesh.tenant}/operations/opr_")
    metadata = metadata_of(started)
    assert (metadata.method, metadata.subject, metadata.is_cancellable) == ("DeleteTenant", "operator", False)
    assert request_of(started) == DeleteTenantRequest(tenant_id=mesh.tenant, request_id="the-request")
    waiting = asyncio.create_task(call(mesh, "WaitOperation", name=started.name, timeout={"seconds": 50}))
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    done = await waiting
    assert done == await get(mesh, started)
    deletion = reported(done).deletion
    assert (deletion.killed_run_count, deletion.deleted_session_count) == (2, 2)
    assert (deletion.deleted_transcript_count, deletion.deleted_object_count) == (2, 1)
    assert metadata_of(done).done_count == 7
    # It has nothing of the tenant but its id, its state and the report, which GetTenant has as well.
    expected = tenant_pb2.Tenant(tenant_id=mesh.tenant, state=DELETED, deletion=deletion)
    assert reported(done) == expected == await mesh.tenant_state()
    assert await remains.everywhere(mesh.tenant) == REPORT
    listed = await call(
        mesh, "ListOperations", name=f"services/session/tenants/{mesh.tenant}", filter="done = true"
    )
    assert list(listed.operations) == [done]


async def test_DeleteTenant__repeat_is_the_same_operation_also_after_the_tenant_was_created_again(
    mesh: Mesh, remains: Remains
) -> None:
    first = await mesh.delete_tenant("same")
    assert await mesh.delete_tenant("same") == first
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    done = await get(mesh, first)
    await mesh.create_tenant()
    late = await mesh.delete_tenant("same")
    assert (late, late.done) == (done, True)
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    assert (await mesh.tenant_state()).state == tenant_pb2.TENANT_STATE_ACTIVE
    await mesh.spawn()
    # Once it is forgotten, the same request_id deletes the new tenant.
    await call(mesh, "DeleteOperation", name=first.name)
    assert (await mesh.delete_tenant("same")).name != first.name
    assert (await mesh.tenant_state()).state == DELETING


async def test_DeleteTenant__several_callers_have_operations_that_end_together(
    mesh: Mesh, remains: Remains
) -> None:
    await family(mesh)
    started = await asyncio.gather(
        *(mesh.delete_tenant(request_id) for request_id in ("a", "b", "a", "b", "a"))
    )
    names = {operation.name for operation in started}
    assert len(names) == 2
    for _ in range(2):  # A follower may have looked before the work was done.
        await work_once(mesh.settings, remains.dsn, mesh.tenant)
    ends = [await get(mesh, operation) for operation in started]
    assert {end.done for end in ends} == {True}
    assert {reported(end).SerializeToString(deterministic=True) for end in ends} == {
        (await mesh.tenant_state()).SerializeToString(deterministic=True)
    }
    # Of a tenant that is deleted, another operation ends at once.
    later = await mesh.delete_tenant("c")
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    assert reported(await get(mesh, later)) == await mesh.tenant_state()


async def test_DeleteTenant__of_a_follower_that_sees_the_tenant_created_again_is_done(
    mesh: Mesh, remains: Remains
) -> None:
    await mesh.delete_tenant("first")
    async with components_of(mesh.settings) as components:
        await purge_all(components, mesh, remains)
    follower = await mesh.delete_tenant("second")
    await mesh.create_tenant()
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    done = await get(mesh, follower)
    assert (done.done, reported(done).state) == (True, DELETED)
    assert (await mesh.tenant_state()).state == tenant_pb2.TENANT_STATE_ACTIVE


async def test_DeleteTenant__of_a_follower_does_not_follow_a_later_deletion(
    mesh: Mesh, remains: Remains
) -> None:
    await mesh.delete_tenant("first")
    async with components_of(mesh.settings) as components:
        await purge_all(components, mesh, remains)
    follower = await mesh.delete_tenant("second")
    await mesh.create_tenant()
    await mesh.delete_tenant("third")
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    done = await get(mesh, follower)
    # The report of the first deletion went when the tenant was created again.
    assert (done.done, reported(done)) == (True, tenant_pb2.Tenant(tenant_id=mesh.tenant, state=DELETED))


async def test_CancelOperation__of_a_deletion_is_refused_until_it_is_done(
    mesh: Mesh, remains: Remains
) -> None:
    started = await mesh.delete_tenant()
    with refused(Reason.OPERATION_NOT_CANCELLABLE) as facts:
        await call(mesh, "CancelOperation", name=started.name)
    assert facts["name"] == started.name
    with refused(Reason.CONFLICT):
        await call(mesh, "DeleteOperation", name=started.name)
    google = operations_pb2_grpc.OperationsStub(mesh.peer.channel)
    request = operations_pb2.CancelOperationRequest(name=started.name)
    with (
        use_token(client_tokens(mesh.keys).admin_token("operator", 600)),
        pytest.raises(MeshError) as caught,
    ):
        await mesh.peer.unary(google.CancelOperation, request, timeout_seconds=60)
    assert caught.value.status is Status.FAILED_PRECONDITION
    assert not metadata_of(await get(mesh, started)).HasField("cancel_time")
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    await call(mesh, "CancelOperation", name=started.name)
    assert (await get(mesh, started)).HasField("response")


async def test_DeleteTenant__refusals_start_nothing(mesh: Mesh) -> None:
    nobody = Mesh(mesh.peer, mesh.keys, mesh.settings)
    with refused(Reason.NOT_FOUND):
        await nobody.delete_tenant()
    listed = await call(mesh, "ListOperations", name=f"services/session/tenants/{nobody.tenant}")
    assert list(listed.operations) == []
    with refused(Reason.INVALID_REQUEST):
        await mesh.operator("DeleteTenant", DeleteTenantRequest(tenant_id=mesh.tenant))
    assert (await mesh.tenant_state()).state == tenant_pb2.TENANT_STATE_ACTIVE


async def test_OperationService__of_a_deletion_is_for_operators_of_the_mesh(mesh: Mesh) -> None:
    started = await mesh.delete_tenant()
    request = rpc.GetOperationRequest(name=started.name)
    with refused(Reason.NOT_FOUND):
        await mesh.client(OperationServiceStub(mesh.peer.channel).GetOperation, request)
    listed = await mesh.client(
        OperationServiceStub(mesh.peer.channel).ListOperations,
        rpc.ListOperationsRequest(name="services/session"),
    )
    assert list(listed.operations) == []


async def purge_all(components: Components, mesh: Mesh, remains: Remains) -> None:
    """Work on the deletion until it is done, without its operation."""
    for _ in range(20):
        await make_due(remains.dsn, mesh.tenant)
        await make_job_worker(components, mesh.settings).run_due(JOB_KIND)
        if (await mesh.tenant_state()).state == DELETED:
            return
    pytest.fail("the deletion does not end")


async def test_DeleteTenant__while_a_service_is_down_waits_and_never_fails(
    mesh: Mesh, open_mesh: OpenMesh, remains: Remains
) -> None:
    """More attempts fail than an operation that may fail has."""
    started = await mesh.delete_tenant()
    async with (
        open_mesh(elsewhere={"hook": "127.0.0.1:1"}) as broken,
        components_of(broken.settings) as components,
    ):
        worker = make_job_worker(components, broken.settings)
        for _ in range(25):
            await make_due(remains.dsn, mesh.tenant)
            await worker.run_due(JOB_KIND)
    stalled = await get(mesh, started)
    assert (stalled.done, metadata_of(stalled).retry_reason) == (False, "DEPENDENCY_UNAVAILABLE")
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    assert reported(await get(mesh, started)).state == DELETED


class Dies(BaseException):
    """The end of the worker's process, which no handler sees."""


async def test_DeleteTenant__goes_on_in_another_worker_after_one_died_in_any_step(
    mesh: Mesh, remains: Remains, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker dies after each of its parts, before it has recorded the step."""
    await family(mesh)
    started = await mesh.delete_tenant()
    advance, parts = TenantPurge.advance, 0

    async def dies_after_a_part(self: TenantPurge, tenant_id: str) -> bool:
        nonlocal parts
        if did_work := await advance(self, tenant_id):
            parts += 1
            raise Dies
        return did_work

    for _ in range(30):
        await make_due(remains.dsn, mesh.tenant)
        async with components_of(mesh.settings) as components:
            with monkeypatch.context() as patch:
                patch.setattr(TenantPurge, "advance", dies_after_a_part)
                await died(make_job_worker(components, mesh.settings))
        if (await mesh.tenant_state()).state == DELETED:
            break
    assert parts > 4
    assert not (await get(mesh, started)).done
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    done = await get(mesh, started)
    assert reported(done) == await mesh.tenant_state()
    assert metadata_of(done).done_count == 7


async def died(worker: JobWorker) -> None:
    with suppress(Dies, BaseExceptionGroup):
        await worker.run_due(JOB_KIND)
