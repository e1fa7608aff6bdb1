"""Tiering: move large payloads of transcripts between the database and the blob store."""

from dataclasses import dataclass

from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh.transcript.v1.storage_service_pb2_grpc import StorageServiceStub
from spawnmesh_core.errors import MeshError

from spawnmesh_client.retry_policy import RetryPolicy
from spawnmesh_client.token_peer import TokenPeer

_RETRY_SECONDS = 60.0
_CALL_SECONDS = 60.0
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
    """Counts of moved entries, or of those that would move, named as in the contract.

    Moves of a call whose answer was lost are not counted.
    """

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
        """Add the counts of one call."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(done, name))
        self.failure_reason = done.failure_reason or self.failure_reason


async def tier_transcript(
    peer: TokenPeer, session_id: str, action: pb.TierAction.ValueType, done: TierCounts
) -> None:
    """Tier a complete transcript in several calls.

    Add each call's counts to `done`, also if a later call fails.

    It continues after restarts of the service, and may be repeated if interrupted. Raises
    MeshError: NOT_FOUND for a session without a transcript, TIER_DISABLED.
    """
    stub = StorageServiceStub(peer.channel)
    request = pb.TierTranscriptRequest(session_id=session_id, action=action)
    retry = RetryPolicy(_RETRY_SECONDS)
    while True:
        retry.begin_attempt()
        try:
            answer = await peer.unary(stub.TierTranscript, request, timeout_seconds=_CALL_SECONDS)
        except MeshError as error:
            await retry.wait_before_next(error)
            continue
        retry.record_answer()
        done.add(answer)
        if answer.done:
            return
        request.after_seq = answer.next_after_seq
