"""The RPC that is being served, as the interceptors pass it on."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from spawnmesh_core.errors import MeshError

from spawnmesh_runtime.caller import Caller
from spawnmesh_runtime.methods import CallPolicy


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """An RPC of this process: its names and the policy of its contract."""

    service: str
    name: str
    policy: CallPolicy
    client_streaming: bool


@dataclass(slots=True)
class Call:
    """The request and the facts that interceptors learn about the call.

    `request` is the iterator over requests for client streaming. `status` is the gRPC name of the
    outcome; it is valid after the errors interceptor. `refusal` is the error that the caller
    received, `defect` the internal error that it did not receive.
    """

    request: Any
    context: "grpc.aio.ServicerContext[Any, Any]"
    metadata: Mapping[str, str | bytes] = field(default_factory=dict)
    caller: Caller | None = None
    status: str = "OK"
    refusal: MeshError | None = None
    defect: BaseException | None = None


Step = Callable[[Call], Awaitable[Any]]

END_OF_STREAM: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # The stubs do not have it.
"""The value that `Call.context.read()` returns after the last message."""
