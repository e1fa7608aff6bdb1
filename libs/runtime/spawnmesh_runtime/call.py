"""The RPC that is being served, as the interceptors pass it on."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import time_ns
from typing import Any

import grpc.aio
from spawnmesh_core.audit_event import AuditEvent
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError

from spawnmesh_runtime.call_limits import RequestBytes
from spawnmesh_runtime.caller import Caller
from spawnmesh_runtime.methods import CallPolicy


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """An RPC of this process: its names and the policy of its contract."""

    service: str
    name: str
    policy: CallPolicy


@dataclass(slots=True)
class Call:
    """The request and the facts that interceptors learn about the call.

    `request` is set once the request is read: the message, or the iterator over the messages for
    client streaming. Its bytes are counted by `request_bytes`, if the caller has limits. A call
    above the limits has a `rate_refusal`. `anonymity` is the reason why there is no caller. A call
    that is not `is_observed` has no span and no log event. `status` is the gRPC name of the
    outcome; it is valid after the errors interceptor. `refusal` is the error that the caller
    received, `defect` the internal error that it did not receive. The call started at
    `start_time_ns`, since 1970, which is `start_seconds` of the monotonic clock. `resources` are
    the ids that the messages name. `audit_event` is set after the call has ended, if it is an event
    of the audit log.
    """

    context: "grpc.aio.ServicerContext[Any, Any]"
    metadata: Sequence[tuple[str, str | bytes]] = ()
    request: Any = None
    caller: Caller | None = None
    anonymity: BaseException | None = None
    request_bytes: RequestBytes | None = None
    rate_refusal: MeshError | None = None
    is_observed: bool = True
    status: str = "OK"
    refusal: MeshError | None = None
    defect: BaseException | None = None
    resources: tuple[str, ...] = ()
    audit_event: AuditEvent | None = None
    start_time_ns: int = field(default_factory=time_ns)
    start_seconds: float = field(default_factory=monotonic_seconds)

    def headers(self, name: str) -> list[Any]:
        """Return the values of a header, which a caller may send more than once: texts, or bytes if
        its name ends in `-bin`.
        """
        return [value for key, value in self.metadata if key == name]


Step = Callable[[Call], Awaitable[Any]]

END_OF_STREAM: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # The stubs do not have it.
"""The value that `Call.context.read()` returns after the last message."""
