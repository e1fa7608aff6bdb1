"""What a model would read of a transcript."""

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub

from spawnmesh_client.token_peer import TokenPeer

_ASSEMBLE_SECONDS = 30.0


async def assemble_context(
    peer: TokenPeer, session_id: str, *, token_budget: int, model: str = ""
) -> pb.AssembleContextResponse:
    """The context that fits so many tokens of the model; without one, of a model that counts as entries are counted."""
    request = pb.AssembleContextRequest(session_id=session_id, token_budget=token_budget, model=model)
    stub = TranscriptServiceStub(peer.channel)
    return await peer.unary(stub.AssembleContext, request, timeout_seconds=_ASSEMBLE_SECONDS)
