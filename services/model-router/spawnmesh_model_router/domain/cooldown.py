"""Cooldowns of models, credentials and providers after failures."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from spawnmesh_model_router.domain.reasons import FailoverReason as R

# A day without a failure resets the count. The day begins at the end of the cooldown: during it
# there are no calls that could fail.
FORGET_AFTER: Final = timedelta(hours=24)
# Failures closer together than this come from concurrent calls. They count as one failure.
BURST: Final = timedelta(seconds=30)
PROBE_LEAD: Final = timedelta(seconds=120)
PROBE_SPACING: Final = timedelta(seconds=30)


class Scope(StrEnum):
    """The scope of a cooldown: one model, one credential (with all its models, or with one), or a
    whole provider.
    """

    MODEL = "MODEL"
    CREDENTIAL = "CREDENTIAL"
    PROVIDER = "PROVIDER"


class Audience(StrEnum):
    """The tenants that a cooldown concerns: the one whose calls failed, or all."""

    TENANT = "TENANT"
    ALL_TENANTS = "ALL_TENANTS"


class CooldownTarget(NamedTuple):
    """The target of a cooldown.

    The name is `provider/model`, `provider/<fingerprint of a credential>` or `provider`, by scope.
    The name of a credential whose cooldown concerns one model has `/model` behind it. The cooldown
    is the tenant's own, or, with an empty tenant, that of all tenants.
    """

    scope: Scope
    name: str
    tenant_id: str = ""

    @property
    def audience(self) -> Audience:
        """Return the tenants that a cooldown of the target concerns."""
        return Audience.TENANT if self.tenant_id else Audience.ALL_TENANTS

    @property
    def of_all_tenants(self) -> "CooldownTarget":
        """Return the same target for all tenants."""
        return CooldownTarget(self.scope, self.name)

    def of_tenant(self, tenant_id: str) -> "CooldownTarget":
        """Return the same target for one tenant."""
        return CooldownTarget(self.scope, self.name, tenant_id)

    def includes(self, other: "CooldownTarget") -> bool:
        """Return whether `other` is this target, or this target for one of all tenants."""
        return self in (other, other.of_all_tenants)

    @property
    def provider(self) -> str:
        """Return the provider of the target."""
        return self.name.partition("/")[0]


# A reason that is missing here causes no cooldown, not even of the tenant. FORMAT, CONTEXT_OVERFLOW
# and NO_FAILOVER are about the request, and SESSION_EXPIRED is about one conversation: the next
# request to the model may succeed. The same holds for EMPTY_RESPONSE: any caller can make a model
# say nothing. UNCLASSIFIED is no evidence against the model: its cause is not known.
SCOPES: Final[dict[R, Scope]] = {
    R.RATE_LIMIT: Scope.MODEL,
    R.OVERLOADED: Scope.MODEL,
    R.TIMEOUT: Scope.MODEL,
    R.SERVER_ERROR: Scope.MODEL,
    R.MODEL_NOT_FOUND: Scope.MODEL,
    R.NO_ERROR_DETAILS: Scope.MODEL,
    R.UNKNOWN: Scope.MODEL,
    R.BILLING: Scope.CREDENTIAL,
    R.AUTH: Scope.CREDENTIAL,
    R.AUTH_PERMANENT: Scope.CREDENTIAL,
    R.TLS_CERTIFICATE: Scope.PROVIDER,
}


@dataclass(frozen=True)
class BackoffSchedule:
    """Cooldowns by the number of failures: the steps in order, then the last one doubled up to
    `longest`.
    """

    steps: tuple[timedelta, ...]
    longest: timedelta

    def duration(self, failures: int) -> timedelta:
        """Return the cooldown after so many failures (at least 1)."""
        if failures <= len(self.steps):
            return self.steps[failures - 1]
        # Twenty doublings of any step exceed every `longest`. More would only overflow.
        doublings = min(failures - len(self.steps), 20)
        return min(self.steps[-1] * 2.0**doublings, self.longest)


ORDINARY: Final = BackoffSchedule(
    (timedelta(seconds=30), timedelta(seconds=60), timedelta(minutes=5)), timedelta(minutes=5)
)
SCHEDULES: Final[dict[R, BackoffSchedule]] = {
    R.RATE_LIMIT: BackoffSchedule((timedelta(seconds=30),), timedelta(hours=24)),
    R.BILLING: BackoffSchedule((timedelta(minutes=10),), timedelta(hours=24)),
    R.AUTH_PERMANENT: BackoffSchedule((timedelta(minutes=10),), timedelta(hours=1)),
}


# A cooldown of all tenants is no longer than this, whatever the schedule of its reason. Two tenants
# can be one attacker.
LONGEST_OF_ALL: Final = timedelta(hours=1)
# A request can cause the failure that asks for the wait.
LONGEST_RETRY_AFTER: Final[dict[Audience, timedelta]] = {
    Audience.TENANT: timedelta(hours=1),
    Audience.ALL_TENANTS: timedelta(minutes=5),
}


@dataclass(frozen=True)
class Cooldown:
    """The cooldown of one target of `scope`. `failed_at` is the last failure that was counted."""

    scope: Scope
    until: datetime
    failures: int
    reason: R
    failed_at: datetime
    audience: Audience = Audience.ALL_TENANTS

    def active(self, now: datetime) -> bool:
        return now < self.until


def schedule_of(reason: R) -> BackoffSchedule:
    """Return the schedule of the reason's cooldowns."""
    return SCHEDULES.get(reason, ORDINARY)


def extend(
    existing: Cooldown | None,
    reason: R,
    now: datetime,
    retry_after: timedelta | None = None,
    *,
    audience: Audience,
    scope: Scope | None = None,
) -> Cooldown | None:
    """Return the cooldown of a target after one more failure; `existing` if `reason` causes none.

    The deadline of an active cooldown never moves earlier. `retry_after` is a minimum, up to the
    longest that the audience allows and up to the longest cooldown. `existing` belongs to the same
    target. `scope` is that of the target, by default `scope_of(reason)`.
    """
    scope = scope or scope_of(reason)
    if scope is None or not causes_cooldown(reason, scope):
        return existing
    schedule = schedule_of(reason)
    failures, failed_at = _count(existing, schedule, now)
    until = now + _duration(schedule, failures, retry_after, audience)
    if existing is not None and existing.active(now) and existing.until >= until:
        if schedule_of(existing.reason) != schedule:
            return existing
        until = existing.until
    return Cooldown(scope, until, failures, reason, failed_at, audience)


def merge(stored: Cooldown, written: Cooldown) -> Cooldown:
    """Return the one of two cooldowns of a target that stays: the later deadline, with its reason.

    Replicas write them without having read each other's. Of two that end at the same time, the
    larger count stays: a failure that does not lengthen a cooldown still counts. The statement
    `extend_cooldown` does the same in one step.
    """
    if written.until != stored.until:
        return max(stored, written, key=lambda cooldown: cooldown.until)
    return replace(
        stored,
        failures=max(stored.failures, written.failures),
        failed_at=max(stored.failed_at, written.failed_at),
    )


def _duration(
    schedule: BackoffSchedule, failures: int, retry_after: timedelta | None, audience: Audience
) -> timedelta:
    asked = min(retry_after or timedelta(0), LONGEST_RETRY_AFTER[audience], schedule.longest)
    duration = max(schedule.duration(failures), asked)
    return duration if audience is Audience.TENANT else min(duration, LONGEST_OF_ALL)


def _count(existing: Cooldown | None, schedule: BackoffSchedule, now: datetime) -> tuple[int, datetime]:
    """Return the number of failures on the schedule, and the time of the last counted one.

    The failure at hand is included.
    """
    if existing is None or schedule_of(existing.reason) != schedule or now - existing.until >= FORGET_AFTER:
        return 1, now
    if existing.active(now) and now - existing.failed_at < BURST:
        return existing.failures, existing.failed_at
    return existing.failures + 1, now


def scope_of(reason: R) -> Scope | None:
    """Return the scope of the reason's cooldown; None if it causes none."""
    return SCOPES.get(reason)


def causes_cooldown(reason: R, scope: Scope) -> bool:
    """Return whether the reason causes a cooldown of the scope.

    In a pool of credentials, a rate limit concerns the credential that met it.
    """
    return scope_of(reason) is scope or (reason is R.RATE_LIMIT and scope is Scope.CREDENTIAL)


def has_same_cooldown(reason: R, other: R | None) -> bool:
    """Return whether both reasons cause a cooldown of the same scope and schedule."""
    return (
        other is not None
        and scope_of(reason) is scope_of(other)
        and schedule_of(reason) == schedule_of(other)
    )


def should_probe(
    cooldown: Cooldown, now: datetime, is_primary: bool, last_probe: datetime | None = None
) -> bool:
    """Return whether one call may go to a candidate in cooldown, to find out whether it has
    recovered.

    That holds only for the primary, in the last 120 s of its cooldown, and at most once in 30 s
    after the last failure or probe.
    """
    if not is_primary or not cooldown.active(now) or cooldown.until - now > PROBE_LEAD:
        return False
    latest = cooldown.failed_at if last_probe is None else max(cooldown.failed_at, last_probe)
    return now - latest >= PROBE_SPACING
