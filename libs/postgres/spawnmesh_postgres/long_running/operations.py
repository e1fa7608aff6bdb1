"""The operations of one service, as messages of the contract."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from google.longrunning.operations_pb2 import Operation
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import status_pb2
from spawnmesh.operations.v1.operation_service_pb2 import OperationMetadata
from spawnmesh_core.errors import not_found

from spawnmesh_postgres.database import Database
from spawnmesh_postgres.listener import Listener
from spawnmesh_postgres.long_running import store
from spawnmesh_postgres.long_running.operation import NewOperation, OperationType, StoredOperation

_POLL_SECONDS = 5.0  # A notification may be lost.


@dataclass(frozen=True, slots=True)
class Operations:
    """Starts, finds and awaits the operations of a service, given by kebab id.

    `types` are the RPCs that start them. The listener listens to `store.CHANNEL`.
    """

    service: str
    database: Database
    listener: Listener
    types: Iterable[OperationType]
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
        return self.render(started)

    def id_of(self, name: str) -> str:
        """Return the id within the name of an operation. Raises NOT_FOUND for another service."""
        prefix, _, operation_id = name.rpartition("/")
        if prefix != f"services/{self.service}/operations":
            raise not_found("operation", name)
        return operation_id

    async def get(self, tenant_id: str, name: str) -> StoredOperation:
        """Return the operation as it is now. Raises NOT_FOUND."""
        return await store.require(self.database, tenant_id, self.id_of(name), name)

    async def wait(self, tenant_id: str, name: str, timeout_seconds: float) -> StoredOperation:
        """Return the operation when it has ended, or after the timeout. Raises NOT_FOUND."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_seconds
        with self.listener.subscription(store.CHANNEL, self.id_of(name)) as ended:
            while True:
                operation = await self.get(tenant_id, name)
                left = give_up - loop.time()
                if operation.end_time is not None or left <= 0:
                    return operation
                await ended.wait(min(left, _POLL_SECONDS))

    def role_of(self, operation: StoredOperation) -> int:
        """Return the number of the role that the RPC needs that started the operation."""
        return self._by_method[operation.method].role

    def render(self, operation: StoredOperation) -> Operation:
        """Return the operation as clients see it."""
        metadata = OperationMetadata(
            method=operation.method,
            subject=operation.subject,
            create_time=_time(operation.create_time),
            update_time=_time(operation.update_time),
            end_time=_time(operation.end_time),
            cancel_time=_time(operation.cancel_time),
            done_count=operation.done_count,
            total_count=operation.total_count,
            partial_response=self._response(operation),
            retry_reason=operation.retry_reason,
            request=_packed(self._by_method[operation.method].request_class, operation.request),
        )
        rendered = Operation(
            name=f"services/{self.service}/operations/{operation.operation_id}",
            done=operation.end_time is not None,
        )
        rendered.metadata.Pack(metadata)
        if operation.error is not None:
            rendered.error.CopyFrom(status_pb2.Status.FromString(operation.error))
        elif operation.end_time is not None:
            rendered.response.CopyFrom(self._response(operation) or AnyMessage())
        return rendered

    def _response(self, operation: StoredOperation) -> AnyMessage | None:
        if operation.response is None:
            return None
        return _packed(self._by_method[operation.method].response_class, operation.response)


def _packed(kind: type[Message], value: bytes) -> AnyMessage:
    """Return the bytes of a message with its name."""
    return AnyMessage(type_url=f"type.googleapis.com/{kind.DESCRIPTOR.full_name}", value=value)


def _time(time: datetime | None) -> Timestamp | None:
    if time is None:
        return None
    rendered = Timestamp()
    rendered.FromDatetime(time)
    return rendered
