"""The operations of one service, as messages of the contract."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from google.longrunning.operations_pb2 import Operation
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import status_pb2
from spawnmesh.operations.v1.operation_service_pb2 import OperationMetadata
from spawnmesh.policy.v1 import policy_pb2
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_core.errors import NotFound, not_found

from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.listener import Listener
from spawnmesh_postgres.long_running import store
from spawnmesh_postgres.long_running.operation import NewOperation, OperationType, StoredOperation

_POLL_SECONDS = 5.0  # A notification may be lost.


@dataclass(frozen=True, slots=True)
class OperationScope:
    """The operations that a list returns: those of a tenant that these RPCs started."""

    tenant_id: str
    methods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OperationPlace:
    """The tenant and the id within the name of an operation."""

    tenant_id: str
    operation_id: str
    name: str


@dataclass(frozen=True, slots=True)
class Operations:
    """Starts, finds and awaits the operations of a service, given by kebab id.

    `types` are the RPCs that start them. The listener listens to `store.CHANNEL`.
    """

    service: str
    database: Database
    listener: Listener
    types: Collection[OperationType]
    _by_method: dict[str, OperationType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._by_method.update({one.method: one for one in self.types})

    async def start(
        self, tenant_id: str, new: NewOperation, check: Callable[[], Awaitable[object]]
    ) -> Operation:
        """Start an operation, or return the one that the same call has started.

        Await `check` before a new one is started, to raise what would end it at once. Raises
        REQUEST_ID_REUSED, OPERATION_COUNT_EXCEEDED and UNKNOWN_TENANT.
        """
        started = await store.find_started(self.database, tenant_id, new)
        if started is None:
            await check()
            started = await store.start(self.database, tenant_id, new)
        return self.render(tenant_id, started)

    async def start_within(
        self,
        connection: Connection,
        tenant_id: str,
        new: NewOperation,
        begin: Callable[[Connection], Awaitable[str]],
    ) -> Operation:
        """Start an operation within a transaction, as `store.start_within` does."""
        return self.render(tenant_id, await store.start_within(connection, tenant_id, new, begin))

    def scope_of(self, name: str, tenant_id: str, role: int) -> OperationScope:
        """Return the operations of a service, or of a tenant of a service, as a caller sees them.

        `name` is such as `services/transcript`, or `services/attachment-blob/tenants/t-1` for the
        operations of operators of the mesh, which only callers with the role `admin` see. Raises
        NOT_FOUND.
        """
        match name.split("/"):
            case ["services", self.service] if tenant_id:
                return OperationScope(tenant_id, self._methods(of_the_mesh=False))
            case ["services", self.service, "tenants", named] if role >= policy_pb2.ROLE_ADMIN:
                return OperationScope(named, self._methods(of_the_mesh=True))
        raise not_found("service", name)

    def place_of(self, name: str, tenant_id: str, role: int) -> OperationPlace:
        """Return the tenant and the id of an operation that a caller names. Raises NOT_FOUND."""
        parent, _, operation_id = name.rpartition("/operations/")
        try:
            scope = self.scope_of(parent, tenant_id, role)
        except NotFound:
            raise not_found("operation", name) from None
        return OperationPlace(scope.tenant_id, operation_id, name)

    async def get(self, place: OperationPlace) -> StoredOperation:
        """Return the operation as it is now. Raises NOT_FOUND."""
        found = await store.find(self.database, place.tenant_id, place.operation_id)
        if found is None or self._name(place.tenant_id, found) != place.name:
            raise not_found("operation", place.name)
        return found

    async def wait(self, place: OperationPlace, timeout_seconds: float) -> StoredOperation:
        """Return the operation when it has ended, or after the timeout. Raises NOT_FOUND."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_seconds
        with self.listener.subscription(store.CHANNEL, place.operation_id) as ended:
            while True:
                operation = await self.get(place)
                left = give_up - loop.time()
                if operation.end_time is not None or left <= 0:
                    return operation
                await ended.wait(min(left, _POLL_SECONDS))

    def type_of(self, operation: StoredOperation) -> OperationType:
        """Return the RPC that started the operation."""
        return self._by_method[operation.method]

    def render(self, tenant_id: str, operation: StoredOperation) -> Operation:
        """Return the operation as clients see it."""
        kind = self._by_method[operation.method]
        metadata = OperationMetadata(
            method=operation.method,
            subject=operation.subject,
            create_time=timestamp_of(operation.create_time),
            update_time=timestamp_of(operation.update_time),
            end_time=timestamp_of(operation.end_time),
            cancel_time=timestamp_of(operation.cancel_time),
            done_count=operation.done_count,
            total_count=operation.total_count,
            partial_response=self._response(operation),
            retry_reason=operation.retry_reason,
            request=_packed(kind.request_class, operation.request),
            is_cancellable=not kind.must_complete,
        )
        rendered = Operation(
            name=self._name(tenant_id, operation),
            done=operation.end_time is not None,
        )
        rendered.metadata.Pack(metadata)
        if operation.error is not None:
            rendered.error.CopyFrom(status_pb2.Status.FromString(operation.error))
        elif operation.end_time is not None:
            rendered.response.CopyFrom(self._response(operation) or AnyMessage())
        return rendered

    def _name(self, tenant_id: str, operation: StoredOperation) -> str:
        parent = f"services/{self.service}"
        if self._by_method[operation.method].is_of_the_mesh:
            parent += f"/tenants/{tenant_id}"
        return f"{parent}/operations/{operation.operation_id}"

    def _methods(self, *, of_the_mesh: bool) -> tuple[str, ...]:
        return tuple(one.method for one in self.types if one.is_of_the_mesh is of_the_mesh)

    def _response(self, operation: StoredOperation) -> AnyMessage | None:
        if operation.response is None:
            return None
        return _packed(self._by_method[operation.method].response_class, operation.response)


def _packed(kind: type[Message], value: bytes) -> AnyMessage:
    """Return the bytes of a message with its name."""
    return AnyMessage(type_url=f"type.googleapis.com/{kind.DESCRIPTOR.full_name}", value=value)
