"""Large payloads of transcripts moved between the database and the blob store."""

from dataclasses import dataclass

from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh.transcript.v1.storage_service_pb2_grpc import StorageServiceStub
from spawnmesh_core.errors import MeshError

from spawnmesh_client.patience import Patience
from spawnmesh_client.token_peer import TokenPeer

_PATIENCE_SECONDS = 60.0
_CALL_SECONDS = 60.0
_COUNTS = (
    "examined_entry_count",
    "externalized_entry_count",
    "cooled_entry_count",
    "cooled_bytes",
    "reverted_entry_count",
    "reverted_bytes",
    "failed_entry_count",
)


@dataclass(slots=True)
class Tiering:
    """What was done, or would be, spelled as in the contract. What a call did whose answer was lost is not counted."""

    examined_entry_count: int = 0
    externalized_entry_count: int = 0
    cooled_entry_count: int = 0
    cooled_bytes: int = 0
    reverted_entry_count: int = 0
    reverted_bytes: int = 0
    failed_entry_count: int = 0
    failure_reason: str = ""

    def add(self, done: "pb.TierTranscriptResponse | Tiering") -> None:
        """So much more."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(done, name))
        self.failure_reason = done.failure_reason or self.failure_reason


async def tier_transcript(peer: TokenPeer, session_id: str, action: pb.TierAction.ValueType, done: Tiering) -> None:
    """Goes through a whole transcript, some entries a call, and outlasts restarts of the service; one that is cut off may be repeated.

    What was done is added to `done` call by call, and is there also when a later one fails. Raises MeshError: NOT_FOUND for a session without
    a transcript, TIER_DISABLED.
    """
    stub = StorageServiceStub(peer.channel)
    request = pb.TierTranscriptRequest(session_id=session_id, action=action)
    patience = Patience(_PATIENCE_SECONDS)
    while True:
        patience.calling()
        try:
            answer = await peer.unary(stub.TierTranscript, request, timeout_seconds=_CALL_SECONDS)
        except MeshError as error:
            await patience.after(error)
            continue
        patience.heard()
        done.add(answer)
        if answer.done:
            return
        request.after_seq = answer.next_after_seq
