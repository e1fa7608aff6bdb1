"""Recounts of transcripts' tokens after a change of the tenant's vocabulary."""

import uuid
from dataclasses import dataclass

from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh.transcript.v1.storage_service_pb2_grpc import StorageServiceStub
from spawnmesh_calls.wire_errors import error_of_status

from spawnmesh_client.operations import OnOperation, ignore_progress, run_operation
from spawnmesh_client.token_peer import TokenPeer


@dataclass(slots=True)
class Recount:
    """The counts of a transcript, or what they would be."""

    token_vocabulary: str = ""
    examined_entry_count: int = 0
    recounted_entry_count: int = 0
    token_count_before: int = 0
    token_count_after: int = 0


async def recount_transcript(
    peer: TokenPeer, session_id: str, *, dry_run: bool, on_progress: OnOperation = ignore_progress
) -> Recount:
    """Recount a complete transcript by an operation, and wait for it.

    It goes on after restarts of the service. Raises MeshError: NOT_FOUND without a transcript, and
    the error of the operation.
    """
    stub = StorageServiceStub(peer.channel)
    request = pb.RecountTranscriptRequest(session_id=session_id, dry_run=dry_run, request_id=uuid.uuid4().hex)
    operation = await run_operation(peer, stub.RecountTranscript, request, on_progress)
    if operation.HasField("error"):
        raise error_of_status(operation.error)
    counts = pb.RecountTranscriptResponse()
    operation.response.Unpack(counts)
    return Recount(
        counts.token_vocabulary,
        counts.examined_entry_count,
        counts.recounted_entry_count,
        counts.token_count_before,
        counts.token_count_after,
    )
