"""The storage of transcripts, page by page, and the operations that change it."""

from dataclasses import dataclass
from uuid import uuid4

from google.longrunning.operations_pb2 import Operation
from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh.transcript.v1.storage_service_pb2_grpc import StorageServiceStub
from spawnmesh_client.client import Mesh
from spawnmesh_client.operations import operation_view

from spawnmesh_console.clients.operations import shown_operation
from spawnmesh_console.domain.operations import OperationKind, ShownOperation
from spawnmesh_console.domain.storage import TranscriptStorage

_ACTIONS = {
    OperationKind.TIER_DRY_RUN: pb.TIER_ACTION_DRY_RUN,
    OperationKind.TIER: pb.TIER_ACTION_APPLY,
    OperationKind.REVERT: pb.TIER_ACTION_REVERT,
}


@dataclass(frozen=True, slots=True)
class TranscriptStoragePage:
    """Transcripts by session id, and the token of the next page; empty on the last one."""

    transcripts: list[TranscriptStorage]
    next_page_token: str


async def transcript_storage_page(
    mesh: Mesh, *, page_token: str = "", page_size: int = 50
) -> TranscriptStoragePage:
    """Return a page of the transcripts, the oldest sessions first. It can be short or empty
    although others follow.
    """
    peer = mesh.wire.service("transcript")
    request = pb.ListTranscriptsRequest(page_token=page_token, page_size=page_size)
    answer = await peer.unary(StorageServiceStub(peer.channel).ListTranscripts, request)
    return TranscriptStoragePage([_storage(one) for one in answer.transcripts], answer.next_page_token)


async def start_operation(
    mesh: Mesh, kind: OperationKind, session_id: str, request_id: str = ""
) -> ShownOperation:
    """Start an operation on the transcript, or return the one that the same `request_id` has
    started.

    Raises NotFound, FailedPrecondition TIER_DISABLED, and ResourceExhausted
    OPERATION_COUNT_EXCEEDED.
    """
    peer = mesh.wire.service("transcript")
    stub = StorageServiceStub(peer.channel)
    request_id = request_id or uuid4().hex
    started: Operation
    if kind in _ACTIONS:
        tier = pb.TierTranscriptRequest(session_id=session_id, action=_ACTIONS[kind], request_id=request_id)
        started = await peer.unary(stub.TierTranscript, tier)
    else:
        is_dry_run = kind is OperationKind.RECOUNT_DRY_RUN
        recount = pb.RecountTranscriptRequest(
            session_id=session_id, dry_run=is_dry_run, request_id=request_id
        )
        started = await peer.unary(stub.RecountTranscript, recount)
    return shown_operation(operation_view(started, mesh.wire))


def _storage(one: pb.TranscriptSize) -> TranscriptStorage:
    return TranscriptStorage(
        one.session_id, one.entry_count, one.token_count, one.logical_bytes, one.stored_bytes
    )
