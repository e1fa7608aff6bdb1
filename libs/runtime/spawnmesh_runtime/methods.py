"""The policy of an RPC from its contract: allowed callers, role, class and audit rule."""

from dataclasses import dataclass

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import MethodDescriptor
from spawnmesh.policy.v1 import policy_pb2
from spawnmesh_calls.contracts import waits

from spawnmesh_runtime.caller import CallerKind, ClientRole
from spawnmesh_runtime.rpc_class import RpcClass

_WITH_HARNESSES = frozenset({CallerKind.RUN, CallerKind.RUNNER})
"""The kinds of caller among which are the harnesses of tenants."""


class PolicyMissing(ValueError):
    """The contract of an RPC does not state its callers, or contradicts itself.

    No server serves it.
    """


@dataclass(frozen=True, slots=True)
class AuditRule:
    """Which calls of an RPC that were not denied are events of the audit log, and what names their
    resources. The contract documents the fields.
    """

    is_recorded: bool = False
    resource_fields: tuple[str, ...] = ()
    only_with_resources: bool = False
    merged: bool = False


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """The callers that may call an RPC, and whether the RPC ends when the token of the
    caller expires.

    `services` are the kebab ids of the allowed services; it is set if `callers` includes SERVICE.
    `role` is the role that a CLIENT needs; it is ADMIN if only operators of the mesh may call.
    `checks_run` and `without_tenant` are documented in the contract. An RPC without `rpc_class` has
    no limits for the mesh itself; at one that is a `limited_step` of a run, harnesses have places.
    Calls of an RPC that `waits` stay open until there is something new. Of one that `is_frequent`,
    the log has those that are refused only.
    """

    callers: frozenset[CallerKind]
    services: frozenset[str]
    ends_with_token: bool = False
    role: ClientRole = ClientRole.NONE
    checks_run: bool = False
    without_tenant: bool = False
    rpc_class: RpcClass | None = None
    audit: AuditRule = AuditRule()
    limited_step: bool = False
    waits: bool = False
    is_frequent: bool = False


def policy_of(method: MethodDescriptor) -> CallPolicy:
    """Return the policy in the options of the method. Raises PolicyMissing."""
    declared = method.GetOptions().Extensions[policy_pb2.call_policy]
    if not declared.callers or policy_pb2.CALLER_UNSPECIFIED in declared.callers:
        raise PolicyMissing(f"{method.full_name} does not say who may call it")
    names = [policy_pb2.Caller.Name(caller).removeprefix("CALLER_") for caller in declared.callers]
    if bool(declared.services) != ("SERVICE" in names):
        raise PolicyMissing(f"{method.full_name} lists services without letting services in, or the reverse")
    callers = frozenset(CallerKind[name] for name in names)
    if declared.checks_run and CallerKind.RUN not in callers:
        raise PolicyMissing(f"{method.full_name} checks runs without letting runs in")
    if declared.without_tenant and CallerKind.SERVICE not in callers:
        raise PolicyMissing(f"{method.full_name} is for tokens without a tenant, and lets no service in")
    is_step = declared.rpc_class == policy_pb2.RPC_CLASS_RUN
    if declared.without_place and not is_step:
        raise PolicyMissing(f"{method.full_name} needs no place, and is no step of a run")
    audit = _audit_rule_of(method, declared.audit)
    if declared.is_frequent and audit.is_recorded:
        raise PolicyMissing(f"{method.full_name} is frequent, and each call is an event of the audit log")
    return CallPolicy(
        callers,
        frozenset(declared.services),
        declared.ends_with_token,
        _role_of(method, declared, callers),
        declared.checks_run,
        declared.without_tenant,
        _class_of(method, declared, callers),
        audit,
        is_step and not declared.without_place,
        waits(method),
        declared.is_frequent,
    )


def _audit_rule_of(method: MethodDescriptor, declared: policy_pb2.AuditPolicy) -> AuditRule:
    """Return what the audit log says about the RPC. Raises PolicyMissing."""
    changes = method.GetOptions().idempotency_level != descriptor_pb2.MethodOptions.NO_SIDE_EFFECTS
    if declared.left_out and not changes:
        raise PolicyMissing(f"{method.full_name} has no side effects, and gives a reason to leave it out")
    if declared.recorded and changes:
        raise PolicyMissing(f"{method.full_name} has side effects; it is recorded anyway")
    if declared.only_with_resources and not declared.resource_fields:
        raise PolicyMissing(f"{method.full_name} needs a resource to be recorded, and names no field")
    return AuditRule(
        declared.recorded or (changes and not declared.left_out),
        tuple(declared.resource_fields),
        declared.only_with_resources,
        declared.merged,
    )


def _role_of(
    method: MethodDescriptor, declared: policy_pb2.CallPolicy, callers: frozenset[CallerKind]
) -> ClientRole:
    """Return the role that a client needs. Raises PolicyMissing."""
    has_clients, has_admins = CallerKind.CLIENT in callers, CallerKind.ADMIN in callers
    role = ClientRole(declared.role)
    if bool(role) != (has_clients or has_admins):
        raise PolicyMissing(f"{method.full_name} names no role although clients call it, or the reverse")
    if role and (role is ClientRole.ADMIN) == has_clients:
        raise PolicyMissing(f"{method.full_name} needs the role ADMIN if, and only if, no client may call it")
    return role


def _class_of(
    method: MethodDescriptor, declared: policy_pb2.CallPolicy, callers: frozenset[CallerKind]
) -> RpcClass | None:
    """Return the class whose limits the RPC has. Raises PolicyMissing."""
    name = policy_pb2.RpcClass.Name(declared.rpc_class).removeprefix("RPC_CLASS_")
    has_clients = CallerKind.CLIENT in callers
    if (name != "UNSPECIFIED") != (has_clients or not callers.isdisjoint(_WITH_HARNESSES)):
        raise PolicyMissing(
            f"{method.full_name} has no class although clients or harnesses call it, or the reverse"
        )
    if name == "RUN" and has_clients:
        raise PolicyMissing(f"{method.full_name} has the class without limits, and lets clients in")
    return None if name in ("UNSPECIFIED", "RUN") else RpcClass(name)
