"""Recounts of transcripts' tokens after a change of the tenant's vocabulary."""

from dataclasses import dataclass

from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh.transcript.v1.storage_service_pb2_grpc import StorageServiceStub
from spawnmesh_core.errors import MeshError

from spawnmesh_client.retry_policy import RetryPolicy
from spawnmesh_client.token_peer import TokenPeer

_RETRY_SECONDS = 60.0
_CALL_SECONDS = 60.0


@dataclass(slots=True)
class Recount:
    """The counts of a transcript, or what they would be."""

    token_vocabulary: str = ""
    examined_entry_count: int = 0
    recounted_entry_count: int = 0
    token_count_before: int = 0
    token_count_after: int = 0


async def recount_transcript(peer: TokenPeer, session_id: str, *, dry_run: bool) -> Recount:
    """Recount a complete transcript in several calls.

    Raises MeshError NOT_FOUND without a transcript.

    It continues after restarts of the service, and may be repeated if interrupted.
    """
    stub = StorageServiceStub(peer.channel)
    request = pb.RecountTranscriptRequest(session_id=session_id, dry_run=dry_run)
    retry = RetryPolicy(_RETRY_SECONDS)
    total = Recount()
    while True:
        retry.begin_attempt()
        try:
            done = await peer.unary(stub.RecountTranscript, request, timeout_seconds=_CALL_SECONDS)
        except MeshError as error:
            await retry.wait_before_next(error)
            continue
        retry.record_answer()
        total.token_vocabulary = done.token_vocabulary
        total.examined_entry_count += done.examined_entry_count
        total.recounted_entry_count += done.recounted_entry_count
        total.token_count_before += done.token_count_before
        total.token_count_after += done.token_count_after
        if done.done:
            return total
        request.after_seq = done.next_after_seq
