"""Every end of a session releases or keeps its files as the policy says, also after repeats."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.attachment_blob.v1.attachment_pb2 import SET_STATE_ATTACHED, SET_STATE_RELEASED
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, derived_id
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token

from tests.support.serving import caller_at, client_tokens
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.remains import Remains
from tests.support.session.terminal_paths import (
    ENDED,
    GONE,
    UNDONE,
    Path,
    Stage,
    archived,
    deleted,
    deleted_with_its_parent,
)
from tests.support.session.worker import work_once

KEEP, DELETE = session_pb2.CLEANUP_KEEP, session_pb2.CLEANUP_DELETE

ROWS = [
    *((path, DELETE, True, "released") for path in ENDED),
    *((path, KEEP, False, "released") for path in ENDED),
    *((path, KEEP, True, "kept") for path in ENDED),
    *((path, KEEP, True, "released") for path in UNDONE),
    *((path, KEEP, True, "released") for path in GONE),
    *((path, DELETE, False, "released") for path in GONE),
]


@pytest.fixture
async def stage(_served_mesh: Mesh, open_mesh: OpenMesh, peers: dict[str, str]) -> AsyncIterator[Stage]:
    mesh = Mesh(_served_mesh.peer, _served_mesh.keys, _served_mesh.settings)
    async with caller_at(peers["transcript"], "transcript") as transcript:
        yield Stage(mesh, open_mesh, transcript, peers, DELETE)


async def set_state(mesh: Mesh, peers: dict[str, str], session_id: str) -> int:
    """Return the state of the session's set; RELEASED for an unknown set."""
    stub: Any
    async with caller_at(peers["attachment-blob"], "attachment-blob") as peer:
        stub = AttachmentBlobServiceStub(peer.channel)
        with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
            request = blob_pb.GetSetRequest(set_id=derived_id(IdKind.ATTACHMENT_SET, session_id))
            try:
                return int((await peer.unary(stub.GetSet, request, timeout_seconds=60)).set.state)
            except MeshError as error:
                if error.reason is not Reason.NOT_FOUND:
                    raise
                return SET_STATE_RELEASED


async def seen(mesh: Mesh, session_id: str) -> session_pb2.Session | Reason:
    try:
        return await mesh.get(session_id)
    except MeshError as error:
        return error.reason


@pytest.mark.parametrize(
    ("path", "cleanup", "retain", "expected"),
    ROWS,
    ids=[
        f"{path.__name__}-{'KEEP' if cleanup == KEEP else 'DELETE'}-{retain}"
        for path, cleanup, retain, _ in ROWS
    ],
)
async def test_files_of_a_session_that_has_ended(
    stage: Stage, remains: Remains, path: Path, cleanup: Any, retain: bool, expected: str
) -> None:
    stage = Stage(stage.mesh, stage.open_mesh, stage.transcript, stage.peers, cleanup)
    mesh = stage.mesh
    await mesh.create_tenant(settings=TenantSettings(retain_on_session_keep=retain))
    session_id = await path(stage)
    await work_once(mesh.settings, remains.dsn, mesh.tenant)

    left, state, session = await everything(stage, remains, session_id)
    assert state == (SET_STATE_ATTACHED if expected == "kept" else SET_STATE_RELEASED)
    assert left.get("attachment_blob.set_files", 0) == (1 if expected == "kept" else 0)
    assert left.get("attachment_blob.blobs", 0) == (1 if expected == "kept" else 0)
    if path in GONE:
        assert session is Reason.NOT_FOUND
        assert left.keys().isdisjoint(
            {"session.runs", "session.session_events", "transcript.entries", "session.jobs"}
        )
    else:
        assert isinstance(session, session_pb2.Session)
        assert session.HasField("end_time")
    assert left.keys().isdisjoint({"session.run_queue", "session.jobs"})

    for repeat in (kill, *REPEATS.get(path, ())):
        await repeat(mesh, session_id)
        await work_once(mesh.settings, remains.dsn, mesh.tenant)
        assert await everything(stage, remains, session_id) == (left, state, session)


async def everything(stage: Stage, remains: Remains, session_id: str) -> tuple[dict[str, int], int, Any]:
    mesh = stage.mesh
    return (
        await remains.everywhere(mesh.tenant),
        await set_state(mesh, stage.peers, session_id),
        await seen(mesh, session_id),
    )


async def kill(mesh: Mesh, session_id: str) -> None:
    await quietly(mesh, mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session_id))


async def archive_again(mesh: Mesh, session_id: str) -> None:
    await quietly(mesh, mesh.sessions.ArchiveSession, pb.ArchiveSessionRequest(session_id=session_id))


async def delete_again(mesh: Mesh, session_id: str) -> None:
    await quietly(mesh, mesh.sessions.DeleteSession, pb.DeleteSessionRequest(session_id=session_id))


async def quietly(mesh: Mesh, call: Any, request: Any) -> None:
    try:
        await mesh.client(call, request)
    except MeshError as error:
        if error.reason is not Reason.NOT_FOUND:
            raise


REPEATS = {archived: (archive_again,), deleted: (delete_again,), deleted_with_its_parent: (delete_again,)}
