"""What a tenant's transcripts take."""

from collections.abc import AsyncIterator

from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh.transcript.v1.storage_service_pb2_grpc import StorageServiceStub

from spawnmesh_client.token_peer import TokenPeer

_PAGE = 200


async def list_transcripts(peer: TokenPeer) -> AsyncIterator[pb.TranscriptSize]:
    """Each transcript of the tenant by session id, fetched page by page as they are asked for."""
    stub = StorageServiceStub(peer.channel)
    request = pb.ListTranscriptsRequest(page_size=_PAGE)
    while True:
        page = await peer.unary(stub.ListTranscripts, request)
        for transcript in page.transcripts:
            yield transcript
        if not page.has_more:
            return
        request.after_session_id = page.transcripts[-1].session_id
