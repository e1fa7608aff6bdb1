"""The caller of the RPC that is being served, as its verified token states it."""

from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from math import inf


class CallerKind(StrEnum):
    """The kinds of caller; the value is the token's claim `kind`."""

    CLIENT = "client"
    ADMIN = "admin"
    RUN = "run"
    SERVICE = "service"
    RUNNER = "runner"


class ClientRole(IntEnum):
    """The roles of clients, in the order of the contract. A role includes the smaller ones.

    NONE is the role of a client whose token names no role of the mesh.
    """

    NONE = 0
    READER = 1
    USER = 2
    OPERATOR = 3
    ADMIN = 4

    @property
    def included(self) -> str:
        """The names of this role and of those that it includes, such as `reader,user`."""
        return ",".join(role.name.lower() for role in ClientRole if 0 < role <= self)


_OF_THE_MESH = frozenset({CallerKind.SERVICE, CallerKind.RUN, CallerKind.RUNNER})
"""The kinds of caller whose tokens the mesh itself signs."""

ROLES = {role.name.lower(): role for role in ClientRole if role}
"""The roles by the names that tokens have."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A verified caller.

    `tenant_id` is empty only for ADMIN and RUNNER; `client_tenant_id` is the tenant of a client
    that acts as ADMIN. Session, run and epoch are set for RUN, `service` is set for SERVICE.
    `permissions` extend what a CLIENT may do; the contracts name the permissions that RPCs require.
    A RUNNER gets only runs of these `tenants` and `agents`; if none are named, runs of all tenants,
    and of all agents.

    A RUN `is_harness` if a program of its tenant claimed it, and not a runner of the mesh;
    `harness_token_id` is the id of the token that it was claimed with, and it may continue the
    trace of `traceparent`, the one of its session. If it `has_budget`, its model calls count in
    budgets; they are the spending of its agent `agent_id`, which is empty if the token names none.
    The token expires at `expire_timestamp`, in seconds since 1970; `issuer` signed it.
    `further_keys` end the token as well as its own `revocation_key`.
    """

    kind: CallerKind
    subject: str
    tenant_id: str = ""
    session_id: str = ""
    run_id: str = ""
    epoch: int = 0
    service: str = ""
    permissions: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    role: ClientRole = ClientRole.NONE
    harness_token_id: str = ""
    traceparent: str = ""
    has_budget: bool = False
    agent_id: str = ""
    client_tenant_id: str = ""
    expire_timestamp: float = field(default=inf, compare=False)
    issuer: str = field(default="", compare=False)
    revocation_key: str = field(default="", compare=False)
    further_keys: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_harness(self) -> bool:
        """True for a run that a program of its tenant claimed."""
        return bool(self.harness_token_id)

    @property
    def is_of_the_mesh(self) -> bool:
        """True for the mesh's own services and runners, and for runs on the latter.

        A harness of a tenant, which claims runs of some tenants or works on one, is no part of it.
        """
        is_limited = self.is_harness or bool(self.tenants or self.agents)
        return self.kind in _OF_THE_MESH and not is_limited

    @property
    def charged_tenant_id(self) -> str:
        """The tenant whose share of this process the call takes; empty for the mesh itself.

        A runner of tenants takes the share of the first of them.
        """
        return self.tenant_id or self.client_tenant_id or min(self.tenants, default="")

    @property
    def token_id(self) -> str:
        """The id under which the token can be revoked; empty for services."""
        return self.revocation_key.partition("/")[2]


_caller: ContextVar[Caller | None] = ContextVar("spawnmesh_caller", default=None)


def current_caller() -> Caller:
    """Return the caller of the RPC being served. Raises LookupError outside of an RPC."""
    caller = _caller.get()
    if caller is None:
        raise LookupError("no call is being served here")
    return caller


def caller_tenant_id() -> str:
    """Return the tenant of the RPC being served. Raises LookupError outside of an RPC."""
    return current_caller().tenant_id


def caller_scope() -> tuple[str, bool]:
    """Return the tenant of the RPC being served, and whether the caller is an operator of the mesh.

    Raises LookupError outside of an RPC.
    """
    caller = current_caller()
    return caller.tenant_id, caller.role is ClientRole.ADMIN


def caller_role() -> tuple[str, int]:
    """Return the tenant of the RPC being served, and the number of the client's role.

    Raises LookupError outside of an RPC.
    """
    caller = current_caller()
    return caller.tenant_id, int(caller.role)


def caller_or_none() -> Caller | None:
    """Return the caller of the RPC being served, or None outside of an RPC."""
    return _caller.get()


def set_caller(caller: Caller | None) -> None:
    """Set the caller for the current task and for tasks that it starts later."""
    _caller.set(caller)
