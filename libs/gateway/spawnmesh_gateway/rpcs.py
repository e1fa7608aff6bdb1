"""The RPCs that a gateway lets through, and the services behind them."""

from dataclasses import dataclass
from functools import cache

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import MethodDescriptor
from spawnmesh_calls.contracts import mesh_services, repeatable
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.methods import policy_of
from spawnmesh_runtime.rpc_class import RpcClass

from spawnmesh_gateway.settings import SERVICES

_QUICK = frozenset({RpcClass.READ, RpcClass.WRITE})


@dataclass(frozen=True, slots=True)
class GatewayRpc:
    """An RPC that callers outside of the mesh may call.

    `services` serve it: one, or all where the contract is shared by them.
    """

    method: MethodDescriptor
    services: tuple[str, ...]

    @property
    def path(self) -> str:
        """The path of a gRPC call."""
        return f"/{self.method.containing_service.full_name}/{self.method.name}"

    @property
    def is_shared(self) -> bool:
        """True if each service serves it, so that the call must name the service."""
        return len(self.services) > 1

    @property
    def is_repeatable(self) -> bool:
        """True if the contract allows a repeat when no answer arrived."""
        return repeatable(self.method)

    @property
    def only_reads(self) -> bool:
        """True if the call changes nothing."""
        level: int = self.method.GetOptions().idempotency_level
        return level == descriptor_pb2.MethodOptions.NO_SIDE_EFFECTS

    @property
    def is_stream(self) -> bool:
        """True if either side sends a stream."""
        return bool(self.method.client_streaming or self.method.server_streaming)

    @property
    def is_quick(self) -> bool:
        """True if a call reads or writes a few rows and waits for nothing."""
        return not self.is_stream and policy_of(self.method).rpc_class in _QUICK


@cache
def gateway_rpcs() -> tuple[GatewayRpc, ...]:
    """Return the RPCs that clients, operators, runs or runners may call, in order of their paths.

    An RPC that only services may call is not among them.
    """
    return tuple(
        GatewayRpc(method, _services_of(method))
        for service in mesh_services()
        for method in service.methods
        if policy_of(method).callers - {CallerKind.SERVICE}
    )


@cache
def client_rpcs() -> tuple[GatewayRpc, ...]:
    """Return the RPCs that clients or operators may call."""
    outside = {CallerKind.CLIENT, CallerKind.ADMIN}
    return tuple(rpc for rpc in gateway_rpcs() if policy_of(rpc.method).callers & outside)


def _services_of(method: MethodDescriptor) -> tuple[str, ...]:
    """Return the service that owns the package of the contract; else all of them serve it."""
    owner = method.containing_service.file.package.split(".")[1].replace("_", "-")
    return (owner,) if owner in SERVICES else SERVICES
