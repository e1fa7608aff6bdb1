"""Events of the audit log: who called which RPC for which resource, with which outcome."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256

MAX_RESOURCES = 16
"""Ids that one event names at most."""

DENIED = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})
"""The statuses of denied calls."""

MAX_TEXT_CHARS = 256
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One call. It has ids and never content.

    `tenant_id` is empty if neither the caller nor the request names one. `caller_kind`, `subject`
    and `token_id` are empty if the caller is not known. `resources` are `name=value`. An event that
    `merges` may be counted together with others that have the same `key`.
    """

    tenant_id: str
    method: str
    code: str
    event_time: datetime
    reason: str = ""
    caller_kind: str = ""
    subject: str = ""
    token_id: str = ""
    resources: tuple[str, ...] = ()
    trace_id: str = ""
    peer: str = ""
    merges: bool = field(default=False, compare=False)

    @property
    def key(self) -> tuple[object, ...]:
        """The fields that are the same in events that are counted together."""
        who = self.tenant_id, self.caller_kind, self.subject, self.token_id, self.peer
        return (*who, self.method, self.resources, self.code, self.reason)


Record = Callable[[AuditEvent], None]
"""Takes an event without waiting."""


def work_event(
    worker: str, tenant_id: str, method: str, event_time: datetime, *resources: tuple[str, str]
) -> AuditEvent:
    """Return the event of a worker's own work. `method` is the RPC that has this effect."""
    return AuditEvent(
        tenant_id=tenant_id,
        method=method,
        code="OK",
        event_time=event_time,
        caller_kind="service",
        subject=worker,
        resources=tuple(resource(name, value) for name, value in resources),
    )


def resource(name: str, value: str) -> str:
    """Return an entry of `resources`. A value that does not look like an id is hashed: it might be
    content.
    """
    if _ID.fullmatch(value) is None:
        value = f"sha256:{sha256(value.encode(errors='replace')).hexdigest()}"
    return f"{name}={value}"


def shortened_text(text: str) -> str:
    """Return the beginning of a text that a token or a connection states.

    Characters that PostgreSQL cannot store are replaced by `?`: one event that cannot be stored
    would keep all others waiting.
    """
    return text[:MAX_TEXT_CHARS].encode(errors="replace").decode().replace("\0", "?")
