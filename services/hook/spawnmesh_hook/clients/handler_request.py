"""A request to HookHandlerService, independent of how the plugin is connected."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message
from grpc import aio
from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb

from spawnmesh_hook.clients.handler_answer import Answer
from spawnmesh_hook.domain.call_failures import CallFailure
from spawnmesh_hook.domain.deliveries import DeliveryDecision
from spawnmesh_hook.domain.plugins import HookKind

Request = TypeVar("Request", bound=Message)

_SERVICE = pb.DESCRIPTOR.services_by_name["HookHandlerService"].full_name


def _always_permitted(_answer: object) -> CallFailure | None:
    return None


@dataclass(frozen=True, slots=True)
class HandlerMethod:
    """A method of HookHandlerService, by its name. A worker process cannot return a function."""

    name: str

    def __call__(self, channel: aio.Channel) -> "aio.UnaryUnaryMultiCallable[Any, bytes]":
        """Return the method. It returns the bytes of the answer."""
        path = f"/{_SERVICE}/{self.name}"
        method: aio.UnaryUnaryMultiCallable[Any, bytes] = channel.unary_unary(path, _serialized, None)
        return method


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


@dataclass(frozen=True, slots=True)
class HandlerRequest(Generic[Request, Answer]):
    """A request to send to a plugin.

    `decision_of` names a valid answer in the delivery log. `check_permitted` returns a failure for
    an answer that the proto allows but the plugin may not give, such as for want of a grant.
    """

    hook: HookKind
    session_id: str
    run_id: str
    method: HandlerMethod
    request: Request
    answer_type: type[Answer]
    decision_of: Callable[[Answer], DeliveryDecision]
    check_permitted: Callable[[Answer], CallFailure | None] = _always_permitted
