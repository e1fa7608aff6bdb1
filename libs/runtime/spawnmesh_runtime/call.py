"""One RPC being served, as the interceptors hand it on."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from spawnmesh_core.errors import MeshError

from spawnmesh_runtime.caller import Caller
from spawnmesh_runtime.methods import Policy


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """An RPC of this process: its names, and what its contract says."""

    service: str
    name: str
    policy: Policy
    client_streaming: bool


@dataclass(slots=True)
class Call:
    """The request (for client streaming: the iterator over requests), and what becomes known about the call on the way.

    `status` is the gRPC name of the outcome, valid once the errors interceptor is left; `refusal` is what was told to the caller, `defect` what
    was kept from it.
    """

    request: Any
    context: "grpc.aio.ServicerContext[Any, Any]"
    metadata: Mapping[str, str | bytes] = field(default_factory=dict)
    caller: Caller | None = None
    status: str = "OK"
    refusal: MeshError | None = None
    defect: BaseException | None = None


Step = Callable[[Call], Awaitable[Any]]

NO_MORE: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # The stubs do not have it.
"""What `Call.context.read()` gives behind the last message."""
