"""The operations of a FakeMesh, and the RPCs that start them, with the refusals of a mesh."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from google.longrunning.operations_pb2 import Operation
from google.protobuf.message import Message
from spawnmesh.operations.v1 import operation_service_pb2 as rpc
from spawnmesh.transcript.v1 import storage_service_pb2 as storage
from spawnmesh_calls.wire_errors import status_of
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from spawnmesh_client.entries import entry_view
from spawnmesh_client.fake_records import SessionRecord, now
from spawnmesh_client.fake_refusals import id_reused

_SUBJECT = "fake"
"""The subject of the token of a FakeMesh."""
_PREFIX = "services/transcript/operations/"
_VOCABULARY = "words"
_MAX_OPEN_COUNT = 100
_DOMAIN = "transcript.spawnmesh"


@dataclass(slots=True)
class _Started:
    operation: Operation
    metadata: rpc.OperationMetadata
    request: storage.TierTranscriptRequest | storage.RecountTranscriptRequest

    def rendered(self) -> Operation:
        self.operation.metadata.Pack(self.metadata)
        return self.operation


class FakeOperations:
    """Start operations, and carry out each when a later call gets it or waits for it.

    Payloads are never large, so nothing is moved; tokens are words, and are never counted anew.
    """

    def __init__(
        self,
        look: Callable[[str], SessionRecord],
        records: Callable[[], Iterator[SessionRecord]],
        *,
        moves_payloads: bool,
    ) -> None:
        self._look, self._records, self._moves_payloads = look, records, moves_payloads
        self._started: dict[str, _Started] = {}

    async def ListTranscripts(
        self, _request: storage.ListTranscriptsRequest
    ) -> storage.ListTranscriptsResponse:
        sizes = sorted(map(_size, self._records()), key=lambda one: one.session_id)
        return storage.ListTranscriptsResponse(transcripts=sizes)

    async def TierTranscript(self, request: storage.TierTranscriptRequest) -> Operation:
        return self._start("TierTranscript", request)

    async def RecountTranscript(self, request: storage.RecountTranscriptRequest) -> Operation:
        return self._start("RecountTranscript", request)

    async def GetOperation(self, request: rpc.GetOperationRequest) -> Operation:
        started = self._found(request.name)
        self._carry_out(started)
        return started.rendered()

    async def ListOperations(self, request: rpc.ListOperationsRequest) -> rpc.ListOperationsResponse:
        if request.name != _PREFIX.removesuffix("/operations/"):
            raise MeshError(Reason.UNKNOWN_RPC, f"{request.name} has no operations")
        found = [one.rendered() for one in reversed(self._started.values())]
        wanted = {"": (True, False), "done = true": (True,), "done = false": (False,)}[request.filter]
        return rpc.ListOperationsResponse(operations=[one for one in found if one.done in wanted])

    async def WaitOperation(self, request: rpc.WaitOperationRequest) -> Operation:
        return await self.GetOperation(rpc.GetOperationRequest(name=request.name))

    async def CancelOperation(self, request: rpc.CancelOperationRequest) -> rpc.CancelOperationResponse:
        started = self._found(request.name)
        if not started.operation.done and not started.metadata.HasField("cancel_time"):
            started.metadata.cancel_time.CopyFrom(now())
        return rpc.CancelOperationResponse()

    async def DeleteOperation(self, request: rpc.DeleteOperationRequest) -> rpc.DeleteOperationResponse:
        if not self._found(request.name).operation.done:
            raise MeshError(
                Reason.CONFLICT,
                "the operation is not done; cancel it first",
                facts={"name": request.name},
            )
        del self._started[request.name]
        return rpc.DeleteOperationResponse()

    def _start(
        self, method: str, request: storage.TierTranscriptRequest | storage.RecountTranscriptRequest
    ) -> Operation:
        for known in self._started.values():
            if known.request.request_id == request.request_id:
                if known.request != request:
                    raise id_reused(request.request_id)
                return known.rendered()
        self._check(request)
        if sum(not one.operation.done for one in self._started.values()) >= _MAX_OPEN_COUNT:
            raise MeshError(
                Reason.OPERATION_COUNT_EXCEEDED,
                f"{_MAX_OPEN_COUNT} operations are not done; wait for one of them",
                facts={"limit": _MAX_OPEN_COUNT},
            )
        name = f"{_PREFIX}{new_id(IdKind.OPERATION)}"
        metadata = rpc.OperationMetadata(
            method=method, subject=_SUBJECT, create_time=now(), update_time=now(), is_cancellable=True
        )
        metadata.request.Pack(request)
        started = self._started[name] = _Started(Operation(name=name), metadata, request)
        return started.rendered()

    def _check(
        self, request: storage.TierTranscriptRequest | storage.RecountTranscriptRequest
    ) -> SessionRecord:
        """Return the record of the transcript. Raises NOT_FOUND and TIER_DISABLED."""
        record = self._look(request.session_id)
        is_apply = isinstance(request, storage.TierTranscriptRequest) and (
            request.action == storage.TIER_ACTION_APPLY
        )
        if is_apply and not self._moves_payloads:
            raise MeshError(
                Reason.TIER_DISABLED,
                "the tenant has stub_large_tool_payloads off: set it, or request a dry run or a revert",
            )
        return record

    def _carry_out(self, started: _Started) -> None:
        """End the operation, if it has not ended."""
        if started.operation.done:
            return
        metadata = started.metadata
        try:
            if metadata.HasField("cancel_time"):
                raise MeshError(Reason.CANCELLED, "the operation was cancelled; what it has done stays done")
            count = len(self._check(started.request).entries)
        except MeshError as error:
            started.operation.error.CopyFrom(status_of(error, _DOMAIN))
        else:
            response = _response(started.request, count)
            metadata.done_count = metadata.total_count = count
            metadata.partial_response.Pack(response)
            started.operation.response.Pack(response)
        started.operation.done = True
        metadata.end_time.CopyFrom(now())
        metadata.update_time.CopyFrom(metadata.end_time)

    def _found(self, name: str) -> _Started:
        if name not in self._started:
            raise not_found("operation", name)
        return self._started[name]


def _response(request: Message, count: int) -> Message:
    if isinstance(request, storage.TierTranscriptRequest):
        return storage.TierTranscriptResponse(examined_entry_count=count)
    return storage.RecountTranscriptResponse(examined_entry_count=count, token_vocabulary=_VOCABULARY)


def _size(record: SessionRecord) -> storage.TranscriptSize:
    texts = [entry_view(one).text for one in record.entries]
    size = sum(one.body.ByteSize() for one in record.entries)
    return storage.TranscriptSize(
        session_id=record.session.session_id, entry_count=len(record.entries),
        token_count=sum(len(text.split()) for text in texts), logical_bytes=size, stored_bytes=size,
    )  # fmt: skip
