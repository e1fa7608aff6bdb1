"""The services of the contracts, and the RPCs that a client may repeat."""

import importlib
import pkgutil
from functools import cache

import spawnmesh
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from spawnmesh.policy.v1 import policy_pb2

_REPEATABLE = (descriptor_pb2.MethodOptions.NO_SIDE_EFFECTS, descriptor_pb2.MethodOptions.IDEMPOTENT)


def service_descriptor(full_name: str) -> ServiceDescriptor:
    """Return the descriptor of a service whose stubs are imported. Raises KeyError."""
    return descriptor_pool.Default().FindServiceByName(full_name)


@cache
def mesh_services() -> tuple[ServiceDescriptor, ...]:
    """Import all generated stubs and return their services, sorted by name."""
    found: dict[str, ServiceDescriptor] = {}
    for module in pkgutil.walk_packages(spawnmesh.__path__, "spawnmesh."):
        if module.name.endswith("_service_pb2"):
            file = importlib.import_module(module.name).DESCRIPTOR
            found.update((service.full_name, service) for service in file.services_by_name.values())
    return tuple(found[name] for name in sorted(found))


def repeatable(method: MethodDescriptor) -> bool:
    """Return whether the contract allows a client to repeat the RPC when no answer arrived."""
    return method.GetOptions().idempotency_level in _REPEATABLE


def waits(method: MethodDescriptor) -> bool:
    """Return whether calls of the RPC stay open until there is something new."""
    policy = method.GetOptions().Extensions[policy_pb2.call_policy]
    return policy.ends_with_token or policy.rpc_class == policy_pb2.RPC_CLASS_WATCH


@cache
def path_waits(path: str) -> bool:
    """Return whether the path `/<service>/<method>` is of an RPC of the mesh that waits."""
    try:
        return waits(descriptor_pool.Default().FindMethodByName(path.lstrip("/").replace("/", ".")))
    except KeyError:
        return False


@cache
def repeatable_paths() -> frozenset[str]:
    """Return the paths, `/<service>/<method>`, of all RPCs that may be repeated."""
    return frozenset(
        f"/{service.full_name}/{method.name}"
        for service in mesh_services()
        for method in service.methods
        if repeatable(method)
    )
