"""Files that runs publish: calls of the session service, and reads of what was published."""

from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.session.v1 import output_pb2 as pb
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_service_pb2 as session_service
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer

from tests.support.serving import client_tokens
from tests.support.session.harness import Mesh

ATTACHED = attachment_pb2.SET_STATE_ATTACHED
RELEASED = attachment_pb2.SET_STATE_RELEASED


def file(name: str = "report.txt", data: bytes = b"42\n") -> attachment_pb2.InlineAttachment:
    """A file by value."""
    return attachment_pb2.InlineAttachment(name=name, data=data, mime_type="text/plain")


async def held_run(mesh: Mesh, **fields: Any) -> run_pb.ClaimedRun:
    """Spawn a session, and claim its run."""
    return await mesh.claim((await mesh.spawn(**fields)).session_id)


async def held_child(mesh: Mesh, parent: run_pb.ClaimedRun, **fields: Any) -> run_pb.ClaimedRun:
    """Spawn a session as the held run, and claim its run."""
    return await mesh.claim((await mesh.spawn_as(parent, **fields)).session_id)


async def delete(mesh: Mesh, session_id: str) -> None:
    request = session_service.DeleteSessionRequest(session_id=session_id)
    await mesh.client(mesh.sessions.DeleteSession, request)


async def publish(
    mesh: Mesh,
    held: run_pb.ClaimedRun,
    *files: attachment_pb2.InlineAttachment,
    request_id: str = "",
    **fields: Any,
) -> pb.OutputSet:
    """Publish files of the held run; without any, the one of `file()`."""
    request = pb.PublishFilesRequest(
        epoch=held.run.epoch, request_id=request_id or uuid4().hex, files=files or [file()], **fields
    )
    answer: pb.PublishFilesResponse = await mesh.run(held, mesh.runs.PublishFiles, request)
    return answer.output_set


async def listed(
    mesh: Mesh, session_id: str, *, held: run_pb.ClaimedRun | None = None, **fields: Any
) -> list[pb.OutputSet]:
    """The output sets of a session from all pages, as a client sees them, or a run."""
    request = pb.ListOutputSetsRequest(session_id=session_id, **fields)
    found: list[pb.OutputSet] = []
    while True:
        call = mesh.sessions.ListOutputSets
        page = await (mesh.run(held, call, request) if held else mesh.client(call, request))
        found += page.output_sets
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


@dataclass(frozen=True)
class Blobs:
    """Calls attachment-blob as a client of the mesh's tenant, or with another token."""

    peer: Peer
    mesh: Mesh

    async def get(self, set_id: str, token: str = "") -> attachment_pb2.AttachmentSet:
        request = blob_pb.GetSetRequest(set_id=set_id)
        with use_token(token or self._client()):
            answer = await self.peer.unary(self._stub.GetSet, request, timeout_seconds=60)
        found: attachment_pb2.AttachmentSet = answer.set
        return found

    async def read(self, set_id: str, name: str, token: str = "") -> bytes:
        request = blob_pb.ReadFileRequest(set_id=set_id, name=name)
        with use_token(token or self._client()):
            pieces = self.peer.stream(self._stub.ReadFile, request, timeout_seconds=60)
            async with aclosing(pieces):
                return b"".join([piece.data async for piece in pieces])

    async def sets(self) -> list[attachment_pb2.AttachmentSet]:
        with use_token(self._client()):
            page = await self.peer.unary(
                self._stub.ListSets, blob_pb.ListSetsRequest(page_size=500), timeout_seconds=60
            )
        return list(page.sets)

    @property
    def _stub(self) -> Any:
        return AttachmentBlobServiceStub(self.peer.channel)

    def _client(self) -> str:
        return client_tokens(self.mesh.keys).client_token(self.mesh.tenant, "test", 600)
