"""OperationService of every service with operations."""

from collections.abc import Callable
from typing import Any

from google.longrunning.operations_pb2 import Operation
from grpc import aio
from spawnmesh.operations.v1 import operation_service_pb2 as pb
from spawnmesh.operations.v1.operation_service_pb2_grpc import (
    OperationServiceServicer,
    add_OperationServiceServicer_to_server,
)
from spawnmesh.policy.v1 import policy_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_core.reasons import Reason

from spawnmesh_postgres.long_running import store
from spawnmesh_postgres.long_running.operation import StoredOperation
from spawnmesh_postgres.long_running.operations import OperationPlace, Operations

OPERATION_SERVICE = pb.DESCRIPTOR.services_by_name["OperationService"].full_name
GOOGLE_NAME = "google.longrunning.Operations"
"""The service is served under this name too. The messages have the same bytes."""

_DEFAULT_PAGE_SIZE = 50
_DEFAULT_TIMEOUT_SECONDS = 30.0
_FILTERS = {"": None, "done = true": True, "done = false": False}

Context = aio.ServicerContext[Any, Any]


class OperationServicer(OperationServiceServicer):
    """The servicer of OperationService, on the operations of one service.

    `caller_role` returns the tenant of the call that is being served, and the number of the role of
    its caller.
    """

    def __init__(self, operations: Operations, caller_role: Callable[[], tuple[str, int]]) -> None:
        self._operations = operations
        self._caller_role = caller_role

    async def GetOperation(self, request: pb.GetOperationRequest, context: Context) -> Operation:
        place = self._place_of(request.name)
        return self._operations.render(place.tenant_id, await self._operations.get(place))

    async def ListOperations(
        self, request: pb.ListOperationsRequest, context: Context
    ) -> pb.ListOperationsResponse:
        scope = self._operations.scope_of(request.name, *self._caller_role())
        size = request.page_size or _DEFAULT_PAGE_SIZE
        position = position_of(request, (str,), scope.tenant_id)
        found = await store.list_operations(
            self._operations.database,
            scope.tenant_id,
            methods=scope.methods,
            before_id=position[0] if position else store.NEWEST,
            is_done=_FILTERS[request.filter],
            limit=size + 1,
        )
        page = found[:size]
        return pb.ListOperationsResponse(
            operations=[self._operations.render(scope.tenant_id, one) for one in page],
            next_page_token=(
                page_token([page[-1].operation_id], request, scope.tenant_id) if len(found) > size else ""
            ),
        )

    async def WaitOperation(self, request: pb.WaitOperationRequest, context: Context) -> Operation:
        place = self._place_of(request.name)
        seconds = _DEFAULT_TIMEOUT_SECONDS
        if request.HasField("timeout"):
            seconds = request.timeout.ToNanoseconds() / 1e9
        return self._operations.render(place.tenant_id, await self._operations.wait(place, seconds))

    async def CancelOperation(
        self, request: pb.CancelOperationRequest, context: Context
    ) -> pb.CancelOperationResponse:
        place, operation = await self._changeable(request.name)
        if operation.end_time is None and self._operations.type_of(operation).must_complete:
            raise MeshError(
                Reason.OPERATION_NOT_CANCELLABLE,
                f"{operation.method} cannot be cancelled: what it has begun has to be finished",
                facts={"name": request.name},
            )
        await store.request_cancellation(self._operations.database, place.tenant_id, place.operation_id)
        return pb.CancelOperationResponse()

    async def DeleteOperation(
        self, request: pb.DeleteOperationRequest, context: Context
    ) -> pb.DeleteOperationResponse:
        place, _ = await self._changeable(request.name)
        if not await store.delete(self._operations.database, place.tenant_id, place.operation_id):
            await self._operations.get(place)  # NOT_FOUND: another call deleted it.
            raise MeshError(
                Reason.CONFLICT,
                "the operation is not done; cancel it first",
                facts={"name": request.name},
            )
        return pb.DeleteOperationResponse()

    def _place_of(self, name: str) -> OperationPlace:
        return self._operations.place_of(name, *self._caller_role())

    async def _changeable(self, name: str) -> tuple[OperationPlace, StoredOperation]:
        """Return the place of the operation, and the operation.

        Raises NOT_FOUND, and ROLE_MISSING for a caller that could not have started it.
        """
        tenant_id, role = self._caller_role()
        place = self._operations.place_of(name, tenant_id, role)
        operation = await self._operations.get(place)
        needed = self._operations.type_of(operation).role
        if role < needed:
            needed_name = (
                policy_pb2.Role.DESCRIPTOR.values_by_number[needed].name.removeprefix("ROLE_").lower()
            )
            raise MeshError(
                Reason.ROLE_MISSING,
                f"a change of this operation needs the role {needed_name}, which the token does not have",
                facts={"role_needed": needed_name},
            )
        return place, operation


def add_operations(
    server: aio.Server, operations: Operations, caller_role: Callable[[], tuple[str, int]]
) -> None:
    """Add the OperationService of a service with the table of operations."""
    add_OperationServiceServicer_to_server(OperationServicer(operations, caller_role), server)
