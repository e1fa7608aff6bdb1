"""Operations of the mesh in memory are those of the real one: the same program, the same records."""

import pytest
from spawnmesh.transcript.v1 import storage_service_pb2 as storage
from spawnmesh.transcript.v1.storage_service_pb2_grpc import StorageServiceStub
from spawnmesh_client import Mesh, Operation
from spawnmesh_client.recounts import recount_transcript
from spawnmesh_client.storage import list_transcripts
from spawnmesh_client.testing import FakeMesh
from spawnmesh_client.tiering import TierCounts, tier_transcript
from spawnmesh_core.ids import IdKind, new_id

from tests.support.mesh.both_meshes import Record, real, refused, tenant

__all__ = ["real", "tenant"]


def shown(operation: Operation) -> Record:
    """Return the operation without its name, its times and its counts of tokens."""
    response = operation.response
    examined = getattr(response, "examined_entry_count", None)
    return [
        operation.method, type(operation.request).__name__, operation.done, operation.done_count,
        operation.total_count, operation.retry_reason, operation.end_time is not None,
        operation.cancel_time is not None, type(response).__name__, examined, operation.error,
    ]  # fmt: skip


async def program(mesh: Mesh) -> Record:
    """Start operations with the functions of the client, and look at them."""
    session = await mesh.spawn("Say hello.", mode="SESSION")
    await session.result(timeout=60)
    peer = mesh.wire.service("transcript")
    counts = TierCounts()
    await tier_transcript(peer, session.session_id, storage.TIER_ACTION_DRY_RUN, counts)
    recount = await recount_transcript(peer, session.session_id, dry_run=True)
    seen: Record = [counts, recount.examined_entry_count, recount.recounted_entry_count]
    seen += [(one.session_id == session.session_id, one.entry_count) async for one in list_transcripts(peer)]
    found = [one async for one in mesh.operations.list()]
    seen += [*map(shown, found), [one async for one in mesh.operations.list(done=False)]]
    newest = found[0]
    await newest.cancel()  # It is done, so nothing happens.
    seen += [shown(await newest.refresh()), await newest.result(timeout=60) == newest.response]
    await newest.delete()
    seen += [await refused(newest.refresh()), await refused(newest.result()), await refused(newest.cancel())]
    seen += [len([one async for one in mesh.operations.list(done=True)])]
    seen += [await refused(mesh.operations.get("services/transcript/operations/none"))]
    request = storage.RecountTranscriptRequest(session_id=session.session_id, request_id="r")
    stub = StorageServiceStub(peer.channel)
    started = await peer.unary(stub.RecountTranscript, request)
    again = await peer.unary(stub.RecountTranscript, request)
    seen += [started.name == again.name, started.name.rpartition("/")[0]]
    request.dry_run = True
    seen += [await refused(peer.unary(stub.RecountTranscript, request))]
    request.session_id, request.request_id = new_id(IdKind.SESSION), "s"
    seen += [await refused(peer.unary(stub.RecountTranscript, request))]
    apply = storage.TierTranscriptRequest(
        session_id=session.session_id, action=storage.TIER_ACTION_APPLY, request_id="t"
    )
    seen += [await refused(peer.unary(stub.TierTranscript, apply))]
    return [*seen, shown(await mesh.operations.wait(started.name, timeout=60))]


@pytest.mark.timeout(300)
async def test_program_leaves_the_same_record(real: Mesh) -> None:
    record = await program(real)
    fake = await program(FakeMesh())
    assert fake == record
