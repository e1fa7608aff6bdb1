"""The main job on a cluster: a spawn with files, its run, and the answer."""

import asyncio
from typing import Any

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh_runtime.impersonation import use_token

from tests.support.citus.cluster import Cluster, host_of, tenants_on_each_node
from tests.support.serving import caller_at
from tests.support.session.calls import finalize
from tests.support.session.harness import Mesh, attachment


async def claim_all(mesh: Mesh, sessions: list[session_pb2.Session]) -> list[run_pb.ClaimedRun]:
    """Claim the runs of these sessions, of any tenant, as runners do."""
    wanted = {session.session_id for session in sessions}
    held: list[run_pb.ClaimedRun] = []
    async with asyncio.timeout(60):
        while len(held) < len(wanted):
            claimed = await mesh.claim_any(limit=len(wanted))
            held += [one for one in claimed if one.session.session_id in wanted]
    return held


async def work_on(mesh: Mesh, held: run_pb.ClaimedRun, peers: dict[str, str]) -> None:
    """Read what files the session has, as its run, and finalize."""
    async with caller_at(peers["attachment-blob"], "attachment-blob") as blobs:
        stub: Any = AttachmentBlobServiceStub(blobs.channel)
        with use_token(held.run_token):
            request = blob_pb.GetSetRequest(set_id=held.session.receipt.set_id)
            files = (await blobs.unary(stub.GetSet, request)).set.files
    assert [file.name for file in files] == ["a.txt", "b.txt"]
    async with caller_at(peers["transcript"], "transcript") as transcript:
        answer = await finalize(mesh, transcript, held, "the answer")
    assert answer.accepted.run.state == session_pb2.RUN_STATE_SUCCEEDED


async def test_spawn_with_files_reaches_its_answer_for_tenants_on_every_node(
    mesh: Mesh, peers: dict[str, str], cluster: Cluster
) -> None:
    meshes: list[Mesh] = []
    while len(found := tenants_on_each_node(cluster, "session.sessions", [one.tenant for one in meshes])) < 2:
        meshes += [Mesh(mesh.peer, mesh.keys, mesh.settings) for _ in range(4)]
    await asyncio.gather(*(one.create_tenant() for one in meshes))
    sessions = await asyncio.gather(
        *(one.spawn(attachments=[attachment(), attachment("b.txt", "world")]) for one in meshes)
    )
    for held in await claim_all(mesh, sessions):
        await work_on(mesh, held, peers)
    ended = await asyncio.gather(
        *(one.get(session.session_id) for one, session in zip(meshes, sessions, strict=True))
    )
    assert {session.latest_run.result_text for session in ended} == {"the answer"}
    assert {session.state for session in ended} == {session_pb2.SESSION_STATE_CLOSED}
    assert found.keys() == {host_of(worker) for worker in cluster.workers}
