"""Calls of the attachment-blob service."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.attachment_blob.v1.attachment_pb2 import AttachmentSet
from spawnmesh_runtime.peers import Peer

if TYPE_CHECKING:  # The types of asyncio stubs exist only for type checkers.
    from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceAsyncStub


@dataclass(frozen=True, slots=True)
class AttachmentSets:
    """The attachment sets of sessions."""

    peer: Peer
    timeout_seconds: float

    @property
    def _stub(self) -> "AttachmentBlobServiceAsyncStub":
        return AttachmentBlobServiceStub(self.peer.channel)

    async def stage(self, request: pb.StageSetRequest) -> AttachmentSet:
        """Store all files, or none."""
        return (await self.peer.unary(self._stub.StageSet, request, timeout_seconds=self.timeout_seconds)).set

    async def attach(self, set_id: str) -> AttachmentSet:
        """STAGED -> ATTACHED, and return the set."""
        request = pb.AttachSetRequest(set_id=set_id)
        return (
            await self.peer.unary(self._stub.AttachSet, request, timeout_seconds=self.timeout_seconds)
        ).set

    async def release(self, set_id: str) -> None:
        """Any state -> RELEASED, also for an unknown set."""
        request = pb.ReleaseSetRequest(set_id=set_id)
        await self.peer.unary(self._stub.ReleaseSet, request, timeout_seconds=self.timeout_seconds)
