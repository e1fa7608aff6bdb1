"""The main job on a cluster: a spawn with files, its run, and the answer."""

import asyncio
from typing import Any

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_runtime.impersonation import use_token

from tests.support.citus.cluster import Cluster, tenants_on_each_node
from tests.support.serving import caller_at
from tests.support.session.calls import finalize
from tests.support.session.harness import Mesh, attachment


async def job(mesh: Mesh, peers: dict[str, str]) -> session_pb2.Session:
    """Spawn with two files, claim the run, read a file as the run, and finalize."""
    session = await mesh.spawn(attachments=[attachment(), attachment("b.txt", "world")])
    held = await mesh.claim(session.session_id)
    async with caller_at(peers["attachment-blob"], "attachment-blob") as blobs:
        stub: Any = AttachmentBlobServiceStub(blobs.channel)
        with use_token(held.run_token):
            request = blob_pb.GetSetRequest(set_id=held.session.receipt.set_id)
            files = (await blobs.unary(stub.GetSet, request)).set.files
    assert [file.name for file in files] == ["a.txt", "b.txt"]
    async with caller_at(peers["transcript"], "transcript") as transcript:
        answer = await finalize(mesh, transcript, held, "the answer")
    assert answer.accepted.run.state == session_pb2.RUN_STATE_SUCCEEDED
    waited = await mesh.client(
        mesh.sessions.WaitSession, pb.WaitSessionRequest(session_id=session.session_id)
    )
    ended: session_pb2.Session = waited.session
    return ended


async def test_spawn_with_files_reaches_its_answer_for_tenants_on_every_node(
    mesh: Mesh, peers: dict[str, str], cluster: Cluster
) -> None:
    meshes = [Mesh(mesh.peer, mesh.keys, mesh.settings) for _ in range(8)]
    await asyncio.gather(*(one.create_tenant() for one in meshes))
    ended = await asyncio.gather(*(job(one, peers) for one in meshes))
    assert {session.latest_run.result_text for session in ended} == {"the answer"}
    assert {session.state for session in ended} == {session_pb2.SESSION_STATE_CLOSED}
    found = tenants_on_each_node(cluster, "session.sessions", [one.tenant for one in meshes])
    assert len(found) == 2, "the rows are on the workers"
    assert sorted(tenant for tenants in found.values() for tenant in tenants) == sorted(
        one.tenant for one in meshes
    )
