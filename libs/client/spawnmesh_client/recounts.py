"""Tokens of transcripts counted anew, after the tenant's vocabulary was changed."""

from dataclasses import dataclass

from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh.transcript.v1.storage_service_pb2_grpc import StorageServiceStub
from spawnmesh_core.errors import MeshError

from spawnmesh_client.patience import Patience
from spawnmesh_client.token_peer import TokenPeer

_PATIENCE_SECONDS = 60.0
_CALL_SECONDS = 60.0


@dataclass(slots=True)
class Recount:
    """What was counted of a transcript, or would be."""

    token_vocabulary: str = ""
    examined_entry_count: int = 0
    recounted_entry_count: int = 0
    token_count_before: int = 0
    token_count_after: int = 0


async def recount_transcript(peer: TokenPeer, session_id: str, *, dry_run: bool) -> Recount:
    """Counts a whole transcript, some entries a call, and outlasts restarts of the service; one that is cut off may be repeated.

    Raises MeshError: NOT_FOUND for a session without a transcript.
    """
    stub = StorageServiceStub(peer.channel)
    request = pb.RecountTranscriptRequest(session_id=session_id, dry_run=dry_run)
    patience = Patience(_PATIENCE_SECONDS)
    total = Recount()
    while True:
        patience.calling()
        try:
            done = await peer.unary(stub.RecountTranscript, request, timeout_seconds=_CALL_SECONDS)
        except MeshError as error:
            await patience.after(error)
            continue
        patience.heard()
        total.token_vocabulary = done.token_vocabulary
        total.examined_entry_count += done.examined_entry_count
        total.recounted_entry_count += done.recounted_entry_count
        total.token_count_before += done.token_count_before
        total.token_count_after += done.token_count_after
        if done.done:
            return total
        request.after_seq = done.next_after_seq
