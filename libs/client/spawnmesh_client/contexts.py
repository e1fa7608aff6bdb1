"""The context that a model would read of a transcript."""

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub

from spawnmesh_client.token_peer import TokenPeer

_ASSEMBLE_SECONDS = 30.0


async def assemble_context(
    peer: TokenPeer, session_id: str, *, token_budget: int, model: str = "", up_to_seq: int = 0
) -> pb.AssembleContextResponse:
    """Assemble the context that fits the token budget of the model: that of now, or that of the
    time when the transcript ended at `up_to_seq`.

    Without a model, tokens are counted as the entries' stored counts. Raises NotFound, and
    InvalidRequest for a seq beyond the end.
    """
    request = pb.AssembleContextRequest(
        session_id=session_id, token_budget=token_budget, model=model, up_to_seq=up_to_seq
    )
    stub = TranscriptServiceStub(peer.channel)
    return await peer.unary(stub.AssembleContext, request, timeout_seconds=_ASSEMBLE_SECONDS)
