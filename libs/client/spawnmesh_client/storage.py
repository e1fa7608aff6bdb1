"""The storage that a tenant's transcripts use."""

from collections.abc import AsyncIterator

from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh.transcript.v1.storage_service_pb2_grpc import StorageServiceStub

from spawnmesh_client.pages import pages_of
from spawnmesh_client.token_peer import TokenPeer

_PAGE = 200


async def list_transcripts(peer: TokenPeer) -> AsyncIterator[pb.TranscriptSize]:
    """Yield the tenant's transcripts by session id. Pages are fetched as needed."""
    stub = StorageServiceStub(peer.channel)
    request = pb.ListTranscriptsRequest(page_size=_PAGE)
    async for page in pages_of(peer, stub.ListTranscripts, request):
        for transcript in page.transcripts:
            yield transcript
