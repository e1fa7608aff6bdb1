"""Tiering: move large payloads of transcripts between the database and the blob store."""

import uuid
from dataclasses import dataclass

from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh.transcript.v1.storage_service_pb2_grpc import StorageServiceStub
from spawnmesh_calls.wire_errors import error_of_status

from spawnmesh_client.operations import OnOperation, ignore_progress, response_of, run_operation
from spawnmesh_client.token_peer import TokenPeer

_COUNTS = (
    "examined_entry_count",
    "externalized_entry_count",
    "cooled_entry_count",
    "cooled_bytes",
    "reverted_entry_count",
    "reverted_bytes",
    "failed_entry_count",
    "condensed_entry_count",
)


@dataclass(slots=True)
class TierCounts:
    """Counts of moved entries, or of those that would move, named as in the contract."""

    examined_entry_count: int = 0
    externalized_entry_count: int = 0
    cooled_entry_count: int = 0
    cooled_bytes: int = 0
    reverted_entry_count: int = 0
    reverted_bytes: int = 0
    failed_entry_count: int = 0
    condensed_entry_count: int = 0
    failure_reason: str = ""

    def add(self, done: "pb.TierTranscriptResponse | TierCounts") -> None:
        """Add the counts of one operation."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(done, name))
        self.failure_reason = done.failure_reason or self.failure_reason


async def tier_transcript(
    peer: TokenPeer,
    session_id: str,
    action: pb.TierAction.ValueType,
    done: TierCounts,
    on_progress: OnOperation = ignore_progress,
) -> None:
    """Tier a complete transcript by an operation, and wait for it.

    Add its counts to `done`, also those of an operation that fails later.

    It goes on after restarts of the service. Raises MeshError: NOT_FOUND for a session without a
    transcript, TIER_DISABLED, and the error of the operation.
    """
    stub = StorageServiceStub(peer.channel)
    request = pb.TierTranscriptRequest(session_id=session_id, action=action, request_id=uuid.uuid4().hex)
    operation = await run_operation(peer, stub.TierTranscript, request, on_progress)
    counts = response_of(operation)
    if isinstance(counts, pb.TierTranscriptResponse):
        done.add(counts)
    if operation.HasField("error"):
        raise error_of_status(operation.error)
