"""Write drafts as a run."""

from spawnmesh.transcript.v1 import live_service_pb2 as live_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.live_event_pb2 import DraftPiece
from spawnmesh.transcript.v1.live_service_pb2_grpc import LiveServiceStub
from spawnmesh_runtime.impersonation import use_token

from tests.support.transcript.fixtures import Session


async def write_draft(
    session: Session,
    claim: pb.WriterClaim,
    *said: str | DraftPiece,
    offset: int = 0,
    number: int = 1,
    after_seq: int = 1,
) -> live_pb.WriteDraftResponse:
    request = live_pb.WriteDraftRequest(
        session_id=session.session_id,
        claim=claim,
        number=number,
        after_seq=after_seq,
        model="p/m",
        offset=offset,
        pieces=[DraftPiece(text=piece) if isinstance(piece, str) else piece for piece in said],
    )
    peer = session.service.peer
    with use_token(session.run_token(claim)):
        return await peer.unary(LiveServiceStub(peer.channel).WriteDraft, request, timeout_seconds=60.0)
