"""Typed errors: every refusal is a class or a value with a reason and its facts, on both sides of the wire.

Raise `MeshError(Reason.…, "what happened and what to do", **facts)`; the errors interceptor turns it into a gRPC status with
`google.rpc.ErrorInfo`, and the client turns that back into a `MeshError` of the same reason. Match with `refused_with`, never by text.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import STATUS_OF, Status

Fact = str | int | float | bool


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field of a request that is malformed: its path (`attachments[2].name`) and what is wrong with it."""

    field: str
    description: str


class MeshError(Exception):
    """A refusal with a reason. Nothing in it may be secret: message and facts reach the caller, logs and traces.

    `status` defaults to the one of the reason; SPAWN_FAILED alone is raised with another, that of its cause. `retry_after_seconds` is sent as
    `google.rpc.RetryInfo`. `domain` is empty until the error has crossed the wire; then it names the service that refused.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        status: Status | None = None,
        retry_after_seconds: float | None = None,
        violations: tuple[FieldViolation, ...] = (),
        domain: str = "",
        facts: Mapping[str, Fact] | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.status = status or STATUS_OF[reason]
        self.retry_after_seconds = retry_after_seconds
        self.violations = violations
        self.domain = domain
        self.facts: dict[str, str] = {key: str(value) for key, value in (facts or {}).items()}

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


def not_found(what: str, identifier: str) -> MeshError:
    """The refusal for an id that the caller's tenant does not have, whoever else may have it."""
    return MeshError(
        Reason.NOT_FOUND, f"there is no {what} {identifier} here", facts={"resource": what, "id": identifier}
    )


def invalid(field: str, description: str) -> MeshError:
    """The refusal for one malformed field."""
    return MeshError(
        Reason.INVALID_REQUEST, f"{field}: {description}", violations=(FieldViolation(field, description),)
    )


def unavailable(dependency: str, *, retry_after_seconds: float = 1.0) -> MeshError:
    """The refusal when something this service stands on does not answer; `dependency` is its name, never its address."""
    return MeshError(
        Reason.DEPENDENCY_UNAVAILABLE,
        f"{dependency} does not answer; call again later",
        retry_after_seconds=retry_after_seconds,
        facts={"dependency": dependency},
    )


def name_of(error: BaseException) -> str:
    """What a log calls it: a refusal by its reason and who refused, or who was not there; anything else by its type."""
    if not isinstance(error, MeshError):
        return type(error).__name__
    who = error.facts.get("dependency") or error.domain
    return f"{error.reason.value} ({who})" if who else error.reason.value


def refused_with(error: BaseException | None, *reasons: Reason) -> bool:
    """Whether the error, or one it was caused by, was a refusal with one of these reasons."""
    while error is not None:
        if isinstance(error, MeshError) and error.reason in reasons:
            return True
        error = error.__cause__ or error.__context__
    return False
