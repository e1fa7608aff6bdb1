"""A blob store that fails on request, in front of the real one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.blob_service_pb2_grpc import (
    BlobServiceServicer,
    BlobServiceStub,
    add_BlobServiceServicer_to_server,
)
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import current_caller
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.attachment_blob.fixtures import BlobService
from tests.support.serving import served, shared_settings
from tests.support.transcript.fixtures import Service
from tests.support.transcript.tier_sessions import (
    TierSession,
    replica,
)


class FaultyBlobStore(BlobServiceServicer):
    """The real blob store, except that it can refuse puts and releases, return other bytes, and stop
    answering reads."""

    def __init__(self, blobs: BlobService) -> None:
        self.blobs = blobs
        self.refused_sizes: set[int] = set()
        self.refused_releases: set[str] = set()
        self.puts_to_lose = 0
        self.changes_bytes = False
        self.is_frozen = False

    def _stub(self) -> Any:
        return BlobServiceStub(self.blobs.peer.channel)

    def _token(self) -> str:
        minter = TokenMinter("transcript", self.blobs.keys / "transcript.pem")
        return minter.service_token(current_caller().tenant_id)

    async def PutBlob(self, request: blob_pb.PutBlobRequest, context: Any) -> Any:
        if len(request.data) in self.refused_sizes:
            raise MeshError(Reason.DEPENDENCY_UNAVAILABLE, "refused")
        with use_token(self._token()):
            answer = await self.blobs.peer.unary(self._stub().PutBlob, request, timeout_seconds=60)
        if self.puts_to_lose:  # The blob was put, but the answer is lost.
            self.puts_to_lose -= 1
            raise MeshError(Reason.DEPENDENCY_UNAVAILABLE, "lost")
        return answer

    async def GetBlob(self, request: Any, context: Any) -> AsyncIterator[Any]:
        while self.is_frozen:
            await asyncio.sleep(0.05)
        with use_token(self._token()):
            async for piece in self.blobs.peer.stream(self._stub().GetBlob, request, timeout_seconds=60):
                yield blob_pb.GetBlobResponse(data=piece.data[::-1]) if self.changes_bytes else piece

    async def ReleaseBlob(self, request: Any, context: Any) -> Any:
        if request.blob_id in self.refused_releases:
            raise MeshError(Reason.DEPENDENCY_UNAVAILABLE, "refused")
        with use_token(self._token()):
            return await self.blobs.peer.unary(self._stub().ReleaseBlob, request, timeout_seconds=60)


@pytest.fixture
async def faulty_blobs(blobs: BlobService) -> FaultyBlobStore:
    return FaultyBlobStore(blobs)


@pytest.fixture
async def faulty(
    service: Service, tier_session: TierSession, faulty_blobs: FaultyBlobStore, keys: Path
) -> AsyncIterator[TierSession]:
    """The session at a replica that uses this blob store."""

    @asynccontextmanager
    async def opened(process: Process, settings: ProcessSettings) -> AsyncIterator[MeshServer]:
        server = build_server(process)
        add_BlobServiceServicer_to_server(faulty_blobs, server)
        yield server

    settings = ProcessSettings(**shared_settings("attachment-blob", keys))
    async with served("attachment-blob", settings, opened) as target, replica(service, keys, target) as other:
        yield tier_session.at(other)
