"""The context that a model would read of a transcript."""

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub

from spawnmesh_client.token_peer import TokenPeer

_ASSEMBLE_SECONDS = 30.0


async def assemble_context(
    peer: TokenPeer, session_id: str, *, token_budget: int, model: str = ""
) -> pb.AssembleContextResponse:
    """Assemble the context that fits the token budget of the model.

    Without a model, tokens are counted as the entries' stored counts.
    """
    request = pb.AssembleContextRequest(session_id=session_id, token_budget=token_budget, model=model)
    stub = TranscriptServiceStub(peer.channel)
    return await peer.unary(stub.AssembleContext, request, timeout_seconds=_ASSEMBLE_SECONDS)
