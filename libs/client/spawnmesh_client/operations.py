"""Long work of a mesh: operations, which are followed, awaited and cancelled."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from google.longrunning.operations_pb2 import Operation as OperationMessage
from google.protobuf import descriptor_pool
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from spawnmesh.operations.v1 import operation_service_pb2 as rpc
from spawnmesh.operations.v1.operation_service_pb2 import OperationMetadata
from spawnmesh.operations.v1.operation_service_pb2_grpc import OperationServiceStub
from spawnmesh_calls.contracts import mesh_services
from spawnmesh_calls.wire_errors import error_of_status
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.reasons import Reason

from spawnmesh_client.pages import paged
from spawnmesh_client.retry_policy import RetryPolicy
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_client.wire import WireMesh

# A longer wait is split into several calls, which report the progress between them.
_WAIT_CALL_SECONDS = 5.0
_ANSWER_SECONDS = 10.0
_RETRY_SECONDS = 60.0

OnOperation = Callable[[OperationMessage], None]
"""Is called with an operation each time that its progress was read."""


def ignore_progress(_operation: OperationMessage) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class OperationFields:
    """An operation as it was when it was read.

    `method` is the RPC that started it, and `request` its message; None for one that the contracts
    of this client do not have. `subject` is that of the token that started it. `error` is set if it
    failed or was cancelled. `response` is the message of the contract that the operation answers:
    as far as it is known while it is not `done`, None before the first step. `retry_reason` says
    why the newest step failed, if it is tried again. `total_count` is 0 as long as it is not known.
    `cancel` is refused if it is not `is_cancellable`.
    """

    name: str
    method: str
    request: Message | None
    subject: str
    done: bool
    done_count: int
    total_count: int
    retry_reason: str
    create_time: datetime
    end_time: datetime | None
    cancel_time: datetime | None
    is_cancellable: bool
    response: Message | None
    error: MeshError | None


@dataclass(frozen=True, slots=True)
class Operation(OperationFields):
    """An operation, and what can be done with it."""

    _wire: WireMesh = field(repr=False, compare=False)

    async def result(self, timeout: float | None = None) -> Message | None:
        """Wait until the operation is done, and return its response.

        Raises its error, and DeadlineExceeded after `timeout` seconds.
        """
        ended = await Operations(self._wire).wait(self.name, timeout)
        if ended.error is not None:
            raise ended.error
        return ended.response

    async def refresh(self) -> "Operation":
        """Return the operation as it is now."""
        return await Operations(self._wire).get(self.name)

    async def cancel(self) -> None:
        """Request that the operation ends after its current step. Nothing is undone."""
        await Operations(self._wire).cancel(self.name)

    async def delete(self) -> None:
        """Forget the operation. Raises Conflict if it is not done."""
        await Operations(self._wire).delete(self.name)


class Operations:
    """`mesh.operations`. An operation has a name such as `services/transcript/operations/opr_…`.

    Operators of the mesh have operations of their own on a tenant, with names such as
    `services/attachment-blob/tenants/t-1/operations/opr_…`.
    """

    def __init__(self, wire: WireMesh) -> None:
        self._wire = wire

    async def get(self, name: str) -> Operation:
        """Return the operation as it is now. Raises NotFound."""
        peer = self._peer(name)
        request = rpc.GetOperationRequest(name=name)
        found = await peer.unary(OperationServiceStub(peer.channel).GetOperation, request)
        return operation_view(found, self._wire)

    async def list(
        self, service: str = "transcript", *, tenant_id: str = "", done: bool | None = None
    ) -> AsyncIterator[Operation]:
        """Yield the tenant's operations of a service, newest first: all, or those that are done, or
        those that are not.

        With `tenant_id`, yield those that operators of the mesh have started on that tenant.
        """
        peer = self._wire.service(service)
        parent = f"services/{service}/tenants/{tenant_id}" if tenant_id else f"services/{service}"
        filters = {None: "", True: "done = true", False: "done = false"}
        request = rpc.ListOperationsRequest(name=parent, filter=filters[done])
        stub = OperationServiceStub(peer.channel)
        async for operation in paged(peer, stub.ListOperations, request, "operations"):
            yield operation_view(operation, self._wire)

    async def wait(self, name: str, timeout: float | None = None) -> Operation:
        """Wait until the operation is done, over restarts of the service.

        Raises NotFound, and DeadlineExceeded after `timeout` seconds.
        """
        ended = await wait_operation(self._peer(name), name, timeout_seconds=timeout)
        return operation_view(ended, self._wire)

    async def cancel(self, name: str) -> None:
        """Request that the operation ends after its current step. Nothing is undone."""
        peer = self._peer(name)
        request = rpc.CancelOperationRequest(name=name)
        await peer.unary(OperationServiceStub(peer.channel).CancelOperation, request)

    async def delete(self, name: str) -> None:
        """Forget an operation. Raises NotFound, and Conflict if it is not done."""
        peer = self._peer(name)
        request = rpc.DeleteOperationRequest(name=name)
        await peer.unary(OperationServiceStub(peer.channel).DeleteOperation, request)

    def _peer(self, name: str) -> TokenPeer:
        """Return the service in the name. Raises NotFound for what is no name of an operation."""
        match name.split("/"):
            case ["services", service, *_, "operations", _] if service in self._wire.services:
                return self._wire.service(service)
        raise not_found("operation", name)


def operation_view(operation: OperationMessage, wire: WireMesh) -> Operation:
    """Return the view of an operation."""
    metadata = metadata_of(operation)
    return Operation(
        name=operation.name,
        method=metadata.method,
        request=_unpacked(metadata.request),
        subject=metadata.subject,
        done=operation.done,
        done_count=metadata.done_count,
        total_count=metadata.total_count,
        retry_reason=metadata.retry_reason,
        create_time=metadata.create_time.ToDatetime(UTC),
        end_time=metadata.end_time.ToDatetime(UTC) if metadata.HasField("end_time") else None,
        cancel_time=metadata.cancel_time.ToDatetime(UTC) if metadata.HasField("cancel_time") else None,
        is_cancellable=metadata.is_cancellable,
        response=response_of(operation),
        error=error_of_status(operation.error) if operation.HasField("error") else None,
        _wire=wire,
    )


async def run_operation(
    peer: TokenPeer,
    method: Any,
    request: Any,
    on_progress: OnOperation = ignore_progress,
    *,
    timeout_seconds: float | None = None,
) -> OperationMessage:
    """Start an operation by a call that may be repeated, and wait until it is done.

    Call `on_progress` after the start and every few seconds. Raises MeshError if it cannot be
    started, and DEADLINE_EXCEEDED if it is not done after the timeout; an operation that fails is
    returned.
    """
    retry = RetryPolicy(_RETRY_SECONDS)
    while True:
        retry.begin_attempt()
        try:
            operation: OperationMessage = await peer.unary(method, request, timeout_seconds=60.0)
        except MeshError as error:
            await retry.wait_before_next(error)
            continue
        on_progress(operation)
        return await wait_operation(
            peer, operation.name, timeout_seconds=timeout_seconds, on_progress=on_progress
        )


async def wait_operation(
    peer: TokenPeer,
    name: str,
    *,
    timeout_seconds: float | None = None,
    on_progress: OnOperation = ignore_progress,
) -> OperationMessage:
    """Wait until the operation is done, over restarts of the service.

    Raises MeshError: NOT_FOUND, and DEADLINE_EXCEEDED after the timeout.
    """
    stub = OperationServiceStub(peer.channel)
    give_up = None if timeout_seconds is None else monotonic_seconds() + timeout_seconds
    retry = RetryPolicy(_RETRY_SECONDS)
    while True:
        left = _WAIT_CALL_SECONDS if give_up is None else max(0.0, give_up - monotonic_seconds())
        seconds = min(left, _WAIT_CALL_SECONDS)
        request = rpc.WaitOperationRequest(name=name)
        request.timeout.CopyFrom(Duration(seconds=int(seconds), nanos=int(seconds % 1 * 1e9)))
        retry.begin_attempt()
        try:
            operation = await peer.unary(
                stub.WaitOperation, request, timeout_seconds=seconds + _ANSWER_SECONDS
            )
        except MeshError as error:
            await retry.wait_before_next(error)
            continue
        retry.record_answer()
        on_progress(operation)
        if operation.done:
            return operation
        if give_up is not None and monotonic_seconds() >= give_up:
            raise MeshError(Reason.DEADLINE_EXCEEDED, f"{name} is not done; it goes on", facts={"name": name})


def metadata_of(operation: OperationMessage) -> OperationMetadata:
    """Return the metadata of an operation."""
    metadata = OperationMetadata()
    operation.metadata.Unpack(metadata)
    return metadata


def response_of(operation: OperationMessage) -> Message | None:
    """Return the response, as far as it is known while the operation is not done."""
    if operation.HasField("response"):
        return _unpacked(operation.response)
    metadata = metadata_of(operation)
    return _unpacked(metadata.partial_response) if metadata.HasField("partial_response") else None


def _unpacked(packed: AnyMessage) -> Message | None:
    """Return the message; None for a type that the contracts of this client do not have."""
    pool, name = descriptor_pool.Default(), packed.TypeName()
    try:
        found = pool.FindMessageTypeByName(name)
    except KeyError:
        mesh_services()  # It imports all contracts.
        try:
            found = pool.FindMessageTypeByName(name)
        except KeyError:
            return None
    message = GetMessageClass(found)()
    packed.Unpack(message)
    return message
