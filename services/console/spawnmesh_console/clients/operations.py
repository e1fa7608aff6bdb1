"""Operations of the transcript service: page by page, one of them, and its cancellation."""

from dataclasses import dataclass

from google.protobuf.message import Message
from spawnmesh.operations.v1 import operation_service_pb2 as rpc
from spawnmesh.operations.v1.operation_service_pb2_grpc import OperationServiceStub
from spawnmesh.transcript.v1 import compaction_service_pb2 as compaction_pb
from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh_client.client import Mesh
from spawnmesh_client.operations import Operation, operation_view

from spawnmesh_console.domain.operations import (
    CompactionCounts,
    OperationCounts,
    OperationKind,
    RecountingCounts,
    ShownOperation,
    TieringCounts,
)

SERVICE = "transcript"
FILTERS = {"open": "done = false", "done": "done = true"}
_KINDS = {
    pb.TIER_ACTION_DRY_RUN: OperationKind.TIER_DRY_RUN,
    pb.TIER_ACTION_APPLY: OperationKind.TIER,
    pb.TIER_ACTION_REVERT: OperationKind.REVERT,
}


@dataclass(frozen=True, slots=True)
class OperationPage:
    """Operations, newest first, and the token of the next page; empty on the last one."""

    operations: list[ShownOperation]
    next_page_token: str


async def operation_page(
    mesh: Mesh, *, state: str = "", page_token: str = "", page_size: int = 25
) -> OperationPage:
    """Return a page of the operations that are `open` or `done`; of all for another state."""
    peer = mesh.wire.service(SERVICE)
    request = rpc.ListOperationsRequest(
        name=f"services/{SERVICE}",
        filter=FILTERS.get(state, ""),
        page_token=page_token,
        page_size=page_size,
    )
    answer = await peer.unary(OperationServiceStub(peer.channel).ListOperations, request)
    shown = [shown_operation(operation_view(one, mesh.wire)) for one in answer.operations]
    return OperationPage(shown, answer.next_page_token)


async def get_operation(mesh: Mesh, operation_id: str) -> ShownOperation:
    """Return one operation. Raises NotFound."""
    return shown_operation(await mesh.operations.get(_name(operation_id)))


async def cancel_operation(mesh: Mesh, operation_id: str) -> None:
    """Request that the operation ends after its current step. Raises NotFound."""
    await mesh.operations.cancel(_name(operation_id))


def shown_operation(operation: Operation) -> ShownOperation:
    """Return the operation as it is shown."""
    error = operation.error
    return ShownOperation(
        operation.name.rpartition("/")[2],
        operation.method,
        _kind(operation.request),
        getattr(operation.request, "session_id", ""),
        operation.subject,
        operation.done,
        operation.done_count,
        operation.total_count,
        operation.retry_reason,
        operation.create_time,
        operation.end_time,
        operation.cancel_time is not None,
        _counts(operation.response),
        "" if error is None else error.reason.value,
        "" if error is None else error.message,
    )


def _name(operation_id: str) -> str:
    return f"services/{SERVICE}/operations/{operation_id}"


def _kind(request: Message | None) -> OperationKind:
    match request:
        case pb.TierTranscriptRequest():
            return _KINDS.get(request.action, OperationKind.OTHER)
        case pb.RecountTranscriptRequest():
            return OperationKind.RECOUNT_DRY_RUN if request.dry_run else OperationKind.RECOUNT
        case compaction_pb.CompactTranscriptRequest():
            return OperationKind.COMPACTION
    return OperationKind.OTHER


def _counts(response: Message | None) -> OperationCounts | None:
    match response:
        case pb.TierTranscriptResponse():
            return TieringCounts(
                response.externalized_entry_count,
                response.cooled_entry_count,
                response.cooled_bytes,
                response.reverted_entry_count,
                response.reverted_bytes,
                response.failed_entry_count,
                response.failure_reason,
                response.condensed_entry_count,
            )
        case pb.RecountTranscriptResponse():
            return RecountingCounts(
                response.recounted_entry_count,
                response.token_count_before,
                response.token_count_after,
                response.token_vocabulary,
            )
        case compaction_pb.CompactTranscriptResponse():
            return CompactionCounts(response.summarized_entry_count, response.refused_by, response.refusal)
    return None
