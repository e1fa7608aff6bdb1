"""Operations as rows, the progress of a step, and the RPCs that start operations."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from google.longrunning import operations_pb2
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from spawnmesh.policy.v1 import policy_pb2

MAX_OPEN = 100
"""The most operations of a tenant and a service that are not done."""
MAX_FINISHED = 1_000
"""The most operations of a tenant and a service that are kept after their end."""
KEPT_FOR = timedelta(days=7)
"""An operation is deleted so long after its end."""


@dataclass(frozen=True, slots=True)
class OperationType:
    """An RPC that starts operations, as its contract describes it.

    `role` is the number of the role that its callers need. After `max_attempts` attempts in a row
    that failed for a passing reason, an operation fails. One with `must_complete` never fails, and
    cannot be cancelled: a half of its work would be worse than none.
    """

    method: str
    request_class: type[Message]
    response_class: type[Message]
    role: int
    max_attempts: int
    must_complete: bool = False

    @property
    def is_of_the_mesh(self) -> bool:
        """True if operators of the mesh start it, and no client of the tenant sees it."""
        return self.role == policy_pb2.ROLE_ADMIN

    @classmethod
    def of(
        cls, method: MethodDescriptor, *, max_attempts: int = 20, must_complete: bool = False
    ) -> "OperationType":
        """Read the type from the options of the RPC. Raises KeyError if it starts no operation."""
        options = method.GetOptions()
        if not options.HasExtension(operations_pb2.operation_info):
            raise KeyError(f"{method.full_name} has no operation_info")
        name = options.Extensions[operations_pb2.operation_info].response_type
        pool = method.containing_service.file.pool
        return cls(
            method.name,
            GetMessageClass(method.input_type),
            GetMessageClass(pool.FindMessageTypeByName(name)),
            options.Extensions[policy_pb2.call_policy].role,
            max_attempts,
            must_complete,
        )


@dataclass(frozen=True, slots=True)
class NewOperation:
    """An operation to start. The same `request_id` with the same request is the same operation."""

    type: OperationType
    request_id: str
    request: Message
    subject: str
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class StoredOperation:
    """An operation. It is open without `end_time`; then it has an `error` if it failed.

    `step_count` is the fencing token of the next step, which continues at `position`. `response` is
    the response as far as it is known, None before the first step.
    """

    operation_id: str
    method: str
    request: bytes
    subject: str
    response: bytes | None
    position: str
    step_count: int
    done_count: int
    total_count: int
    retry_reason: str
    error: bytes | None
    create_time: datetime
    update_time: datetime
    cancel_time: datetime | None
    end_time: datetime | None


@dataclass(frozen=True, slots=True)
class Work:
    """The input of a step: the request, what the steps before it counted, and where they ended."""

    tenant_id: str
    subject: str
    request: Message
    response: Message
    position: str


@dataclass(frozen=True, slots=True)
class Progress:
    """The result of a step: the response with its counts, and where the next step continues.

    Without `is_done` another step follows, after the pause.
    """

    response: Message
    position: str = ""
    done_count: int = 0
    total_count: int = 0
    is_done: bool = False
    pause: timedelta = timedelta(0)


Step = Callable[[Work], Awaitable[Progress]]
"""Does a bounded part of the work, in seconds. It is repeated if it is interrupted."""
