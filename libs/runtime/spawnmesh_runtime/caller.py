"""Who makes the call that is being served: what a verified token stands for."""

from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf


class CallerKind(StrEnum):
    """The kinds of caller; the value is the token's claim `kind`."""

    CLIENT = "client"
    ADMIN = "admin"
    RUN = "run"
    SERVICE = "service"
    RUNNER = "runner"


@dataclass(frozen=True, slots=True)
class Caller:
    """A verified caller. `tenant_id` is empty for ADMIN and RUNNER alone; session, run and epoch are set for RUN, `service` for SERVICE.

    `permissions` are what a CLIENT may do beyond what every client may; the services that ask for one say so in their contracts. At
    `expire_timestamp`, in seconds since the epoch, the token's time is over.
    """

    kind: CallerKind
    subject: str
    tenant_id: str = ""
    session_id: str = ""
    run_id: str = ""
    epoch: int = 0
    service: str = ""
    permissions: frozenset[str] = frozenset()
    expire_timestamp: float = field(default=inf, compare=False)


_caller: ContextVar[Caller | None] = ContextVar("spawnmesh_caller", default=None)


def current_caller() -> Caller:
    """The caller of the RPC being served. Raises LookupError outside of one."""
    caller = _caller.get()
    if caller is None:
        raise LookupError("no call is being served here")
    return caller


def caller_if_any() -> Caller | None:
    """The caller of the RPC being served, or None outside of one."""
    return _caller.get()


def enter_call_of(caller: Caller | None) -> None:
    """Sets the caller for the current task and for tasks it starts from now on."""
    _caller.set(caller)
