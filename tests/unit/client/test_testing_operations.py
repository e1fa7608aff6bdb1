"""Operations of the mesh in memory, as the tests of a program use them."""

import pytest
from spawnmesh.transcript.v1 import storage_service_pb2 as storage
from spawnmesh.transcript.v1.storage_service_pb2_grpc import StorageServiceStub
from spawnmesh_client import Cancelled, Conflict, NotFound, Operation, ResourceExhausted, Session, sync
from spawnmesh_client.testing import FakeMesh
from spawnmesh_client.tiering import TierCounts, tier_transcript


async def started(mesh: FakeMesh, session: Session, request_id: str = "r") -> Operation:
    """Start a recount, and return it as the list shows it."""
    peer = mesh.wire.service("transcript")
    request = storage.RecountTranscriptRequest(session_id=session.session_id, request_id=request_id)
    await peer.unary(StorageServiceStub(peer.channel).RecountTranscript, request)
    return await anext(mesh.operations.list())


async def test_operation_is_carried_out_when_it_is_looked_at() -> None:
    mesh = FakeMesh()
    operation = await started(mesh, await mesh.spawn("Work."))
    assert (operation.done, operation.response, operation.subject) == (False, None, "fake")
    with pytest.raises(Conflict):
        await operation.delete()
    assert [one.name async for one in mesh.operations.list(done=False)] == [operation.name]
    ended = await operation.refresh()
    assert (ended.done, ended.done_count, ended.total_count) == (True, 4, 4)
    with sync.blocking(mesh) as blocking:
        assert [one.done for one in blocking.operations.list()] == [True]


async def test_cancelled_operation_ends_with_that() -> None:
    mesh = FakeMesh()
    operation = await started(mesh, await mesh.spawn("Work."))
    await operation.cancel()
    with pytest.raises(Cancelled, match="what it has done stays done"):
        await operation.result()
    assert (await operation.refresh()).cancel_time is not None


async def test_operation_on_a_deleted_session_fails() -> None:
    mesh = FakeMesh()
    session = await mesh.spawn("Work.")
    operation = await started(mesh, session)
    await session.delete()
    with pytest.raises(NotFound):
        await operation.result()


async def test_open_operations_are_limited() -> None:
    mesh = FakeMesh()
    session = await mesh.spawn("Work.")
    for number in range(100):
        await started(mesh, session, str(number))
    with pytest.raises(ResourceExhausted, match="100 operations"):
        await started(mesh, session, "one more")


async def test_payloads_are_moved_if_the_tenant_wants_it() -> None:
    mesh = FakeMesh(moves_payloads=True)
    session, counts = await mesh.spawn("Work."), TierCounts()
    apply = storage.TIER_ACTION_APPLY
    await tier_transcript(mesh.wire.service("transcript"), session.session_id, apply, counts)
    assert (counts.examined_entry_count, counts.cooled_entry_count) == (4, 0)
