"""Payloads in the attachment-blob service."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from spawnmesh.attachment_blob.v1 import blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1.blob_service_pb2_grpc import BlobServiceStub
from spawnmesh_core.errors import unavailable
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.peers import Peer

from spawnmesh_transcript.domain.refusals import not_configured, stored_hash_differs

if TYPE_CHECKING:  # The asyncio types of the stubs exist for type checkers only.
    from spawnmesh.attachment_blob.v1.blob_service_pb2_grpc import BlobServiceAsyncStub

_PUT_SECONDS = 20.0
_GET_SECONDS = 20.0
_SILENT_SECONDS = 4.0
"""A frozen store keeps its connections and never answers.

This is shorter than the deadlines of most callers, so that they learn the cause.
"""
_FETCHES = 8  # Of the whole process.


class BlobStore:
    """Calls of the blob service. Without a peer every call raises DEPENDENCY_UNAVAILABLE."""

    def __init__(self, peer: Peer | None) -> None:
        self._peer = peer
        self._fetches = asyncio.Semaphore(_FETCHES)

    @property
    def is_connected(self) -> bool:
        """Return whether this process has a blob service."""
        return self._peer is not None

    async def put(self, blob_id: str, data: bytes, *, session_id: str, mime_type: str) -> None:
        """Store a payload under its id. A repeat changes nothing.

        Raises the service's MeshError.
        """
        peer, blobs = self._connected()
        request = pb.PutBlobRequest(blob_id=blob_id, session_id=session_id, data=data, mime_type=mime_type)
        await peer.unary(blobs.PutBlob, request, timeout_seconds=_PUT_SECONDS)

    async def release(self, blob_id: str) -> None:
        """Release a payload. Raises the service's MeshError."""
        peer, blobs = self._connected()
        request = pb.ReleaseBlobRequest(blob_id=blob_id)
        await peer.unary(blobs.ReleaseBlob, request, timeout_seconds=_PUT_SECONDS)

    async def fetch(self, tenant_id: str, blob_id: str, *, sha256: str) -> bytes:
        """Return a whole payload, with at most `_FETCHES` calls of the process in flight.

        Raises NOT_FOUND, DEPENDENCY_UNAVAILABLE, and STORED_HASH_DIFFERS.
        """
        data = bytearray()
        async with self._fetches:
            with impersonate(tenant_id):
                async with aclosing(self.read(blob_id, offset=0, length=0)) as responses:
                    async for response in responses:
                        data += response.data
        if hashlib.sha256(data).hexdigest() != sha256:
            raise stored_hash_differs("a payload in the blob store is not the one that was put")
        return bytes(data)

    async def read(
        self, blob_id: str, *, offset: int, length: int
    ) -> AsyncGenerator[pb.GetBlobResponse, None]:
        """Stream the bytes of a payload from `offset` on, to its end if `length` is 0.

        Raises NOT_FOUND, and DEPENDENCY_UNAVAILABLE also if the next bytes do not arrive in time.
        """
        peer, blobs = self._connected()
        request = pb.GetBlobRequest(blob_id=blob_id, offset=offset, length=length)
        async with aclosing(peer.stream(blobs.GetBlob, request, timeout_seconds=_GET_SECONDS)) as responses:
            while True:
                try:
                    async with asyncio.timeout(_SILENT_SECONDS):
                        response = await anext(responses)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise unavailable(peer.name) from None
                yield response

    def _connected(self) -> "tuple[Peer, BlobServiceAsyncStub]":
        if self._peer is None:
            raise not_configured("blob store", "ATTACHMENT_BLOB_TARGET")
        return self._peer, BlobServiceStub(self._peer.channel)
