"""Typed errors: a refusal has a reason and facts, and is the same on both sides of the wire.

Raise `MeshError(Reason.…, "what happened and what to do", facts={…})`. The errors interceptor turns
it into a gRPC status with `google.rpc.ErrorInfo`, and the client turns the status into a
`MeshError` of the same reason. Match errors by their class or with `refused_with`, never by their
text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import STATUS_OF, Status

Fact = str | int | float | bool
TRANSIENT_FACT = "is_transient"
"""The fact of an error that says whether the same call may succeed later: `true` or `false`.

It is on errors whose reason alone does not say so: ALL_CANDIDATES_FAILED and PLUGIN_FAILED.
"""
HAS_ALLOW_FACT = "has_allow"
"""The fact of PLUGIN_FAILED and SPAWN_REFUSED that another plugin has allowed the spawn."""


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """A malformed field of a request: its path (`attachments[2].name`) and a description of the
    error.
    """

    field: str
    description: str


class MeshError(Exception):
    """A refusal with a reason.

    Each status has a subclass, and a new MeshError is of the class of its status, as a new OSError
    is of the class of its number: `MeshError(Reason.NOT_FOUND, …)` is a `NotFound`.

    Put no secret in it: the message and the facts reach the caller, logs and traces. `status`
    defaults to the status of the reason; only SPAWN_FAILED is raised with another status, the one
    of its cause. `retry_after_seconds` is sent as `google.rpc.RetryInfo`. `domain` is empty until
    the error has crossed the wire; then it names the service that refused.
    """

    _kinds: ClassVar[dict[Status, type["MeshError"]]] = {}

    def __init_subclass__(cls, *, status: Status | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if status is not None:
            MeshError._kinds[status] = cls

    def __new__(cls, *arguments: Any, **fields: Any) -> Self:
        kind: type[Self] = cls
        if cls is MeshError:
            reason = arguments[0] if arguments else fields["reason"]
            kind = cast(type[Self], MeshError._kinds[fields.get("status") or STATUS_OF[reason]])
        return super().__new__(kind, *arguments)

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

    @property
    def trace_id(self) -> str:
        """The trace in which operators find the call. Empty if the refusal names none."""
        return self.facts.get("trace_id", "")

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the error with all its facts, for a refusal in a worker process."""
        return _restored, (type(self), self.args, self.__dict__)


class InvalidRequest(MeshError, status=Status.INVALID_ARGUMENT):
    """A malformed request. `violations` names the fields. Do not repeat the call as it is."""


class Unauthenticated(MeshError, status=Status.UNAUTHENTICATED):
    """The token is missing, malformed, expired or revoked."""


class PermissionDenied(MeshError, status=Status.PERMISSION_DENIED):
    """The token does not allow the call, or a plugin refused it."""


class NotFound(MeshError, status=Status.NOT_FOUND):
    """There is no such id in the tenant."""


class AlreadyExists(MeshError, status=Status.ALREADY_EXISTS):
    """The id or the request id belongs to something else."""


class FailedPrecondition(MeshError, status=Status.FAILED_PRECONDITION):
    """The state does not allow the call, such as a message to a closed session."""


class ResourceExhausted(MeshError, status=Status.RESOURCE_EXHAUSTED):
    """A limit is reached. Call again after `retry_after_seconds`, if there is one."""


class Conflict(MeshError, status=Status.ABORTED):
    """Another call came first."""


class Unavailable(MeshError, status=Status.UNAVAILABLE):
    """The service, or something that it needs, does not answer. Call again later."""


class DeadlineExceeded(MeshError, status=Status.DEADLINE_EXCEEDED):
    """The answer did not come in time. The call may have had its effect."""


class Cancelled(MeshError, status=Status.CANCELLED):
    """The call was cancelled. It may have had its effect."""


class Unimplemented(MeshError, status=Status.UNIMPLEMENTED):
    """There is no such call here: the mesh is of another version, or it is no mesh."""


class DataLoss(MeshError, status=Status.DATA_LOSS):
    """Stored bytes differ from their recorded hash."""


class InternalError(MeshError, status=Status.INTERNAL):
    """A defect of the service. Operators find the call by `trace_id`."""


def _restored(kind: type[MeshError], args: tuple[object, ...], state: dict[str, object]) -> MeshError:
    """Return the pickled error. A subclass has arguments of its own, which its state replaces."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


def not_found(what: str, identifier: str) -> MeshError:
    """Return the refusal for an id that the tenant of the caller does not have.

    It is the same for an id of another tenant and for an id that does not exist.
    """
    return MeshError(
        Reason.NOT_FOUND, f"there is no {what} {identifier} here", facts={"resource": what, "id": identifier}
    )


def invalid(field: str, description: str) -> MeshError:
    """Return the refusal for one malformed field."""
    return MeshError(
        Reason.INVALID_REQUEST, f"{field}: {description}", violations=(FieldViolation(field, description),)
    )


def unavailable(dependency: str, *, retry_after_seconds: float = 1.0) -> MeshError:
    """Return the refusal for a dependency that does not answer.

    `dependency` is its name, never its address.
    """
    return MeshError(
        Reason.DEPENDENCY_UNAVAILABLE,
        f"{dependency} does not answer; call again later",
        retry_after_seconds=retry_after_seconds,
        facts={"dependency": dependency},
    )


def error_label(error: BaseException) -> str:
    """Return the text for logs: reason and service or dependency of a refusal, else the
    error type.
    """
    if not isinstance(error, MeshError):
        return type(error).__name__
    who = error.facts.get("dependency") or error.domain
    return f"{error.reason.value} ({who})" if who else error.reason.value


def transient_fact(is_transient: bool) -> str:
    """Return the value of TRANSIENT_FACT."""
    return "true" if is_transient else "false"


def is_transient(error: MeshError) -> bool:
    """Return whether the facts of the error say that the same call may succeed later."""
    return error.facts.get(TRANSIENT_FACT) == transient_fact(True)


def refused_with(error: BaseException | None, *reasons: Reason) -> bool:
    """Return whether the error, or an error in its cause chain, has one of these reasons."""
    while error is not None:
        if isinstance(error, MeshError) and error.reason in reasons:
            return True
        error = error.__cause__ or error.__context__
    return False
