"""How long a model, a credential or a provider rests after failures."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from spawnmesh_model_router.domain.reasons import FailoverReason as R

# A day without a failure forgets the count. It begins at the end of the rest: while nobody asks, nothing can fail.
FORGET_AFTER: Final = timedelta(hours=24)
# Failures closer together than this are calls that were under way at once: one event, counted once.
BURST: Final = timedelta(seconds=30)
PROBE_LEAD: Final = timedelta(seconds=120)
PROBE_SPACING: Final = timedelta(seconds=30)


class Scope(StrEnum):
    """What rests: one model, one credential with all its models, or everything at one provider."""

    MODEL = "MODEL"
    CREDENTIAL = "CREDENTIAL"
    PROVIDER = "PROVIDER"


# A reason that is missing here makes no cooldown: FORMAT, CONTEXT_OVERFLOW and NO_FAILOVER are about the request, and
# SESSION_EXPIRED is about one conversation; the next request to the same model may well succeed. So it may after
# EMPTY_RESPONSE: whoever asks can have a model say nothing, and a rest is every tenant's.
SCOPES: Final[dict[R, Scope]] = {
    R.RATE_LIMIT: Scope.MODEL,
    R.OVERLOADED: Scope.MODEL,
    R.TIMEOUT: Scope.MODEL,
    R.SERVER_ERROR: Scope.MODEL,
    R.MODEL_NOT_FOUND: Scope.MODEL,
    R.NO_ERROR_DETAILS: Scope.MODEL,
    R.UNCLASSIFIED: Scope.MODEL,
    R.UNKNOWN: Scope.MODEL,
    R.BILLING: Scope.CREDENTIAL,
    R.AUTH: Scope.CREDENTIAL,
    R.AUTH_PERMANENT: Scope.CREDENTIAL,
    R.TLS_CERTIFICATE: Scope.PROVIDER,
}


@dataclass(frozen=True)
class Ladder:
    """Rests by the number of failures: the steps in turn, then the last one doubled up to `longest`."""

    steps: tuple[timedelta, ...]
    longest: timedelta

    def rest(self, failures: int) -> timedelta:
        if failures <= len(self.steps):
            return self.steps[failures - 1]
        # Twenty doublings of any step are beyond every longest rest; more would only overflow.
        doublings = min(failures - len(self.steps), 20)
        return min(self.steps[-1] * 2.0**doublings, self.longest)


ORDINARY: Final = Ladder((timedelta(seconds=30), timedelta(seconds=60), timedelta(minutes=5)), timedelta(minutes=5))
LADDERS: Final[dict[R, Ladder]] = {
    R.RATE_LIMIT: Ladder((timedelta(seconds=30),), timedelta(hours=24)),
    R.BILLING: Ladder((timedelta(minutes=10),), timedelta(hours=24)),
    R.AUTH_PERMANENT: Ladder((timedelta(minutes=10),), timedelta(hours=1)),
}


@dataclass(frozen=True)
class Cooldown:
    """A rest of one target of `scope`. `failed_at` is the last failure that was counted."""

    scope: Scope
    until: datetime
    failures: int
    reason: R
    failed_at: datetime

    def active(self, now: datetime) -> bool:
        return now < self.until


def ladder_of(reason: R) -> Ladder:
    """The rests that `reason` climbs."""
    return LADDERS.get(reason, ORDINARY)


def extend(
    existing: Cooldown | None, reason: R, now: datetime, retry_after: timedelta | None = None
) -> Cooldown | None:
    """The cooldown of a target after one more failure; `existing` itself when `reason` makes none.

    While `existing` is active its deadline never moves earlier. `retry_after` is a floor, up to the ladder's longest rest.
    `existing` is of the same target; its scope is the one that `scope_of(reason)` gives.
    """
    scope = scope_of(reason)
    if scope is None:
        return existing
    ladder = ladder_of(reason)
    failures, failed_at = _count(existing, ladder, now)
    rest = max(ladder.rest(failures), min(retry_after or timedelta(0), ladder.longest))
    if existing is not None and existing.active(now) and existing.until >= now + rest:
        if ladder_of(existing.reason) != ladder:
            return existing
        return Cooldown(scope, existing.until, failures, reason, failed_at)
    return Cooldown(scope, now + rest, failures, reason, failed_at)


def _count(existing: Cooldown | None, ladder: Ladder, now: datetime) -> tuple[int, datetime]:
    """The failures on `ladder` including this one, and when the last of them was counted."""
    if existing is None or ladder_of(existing.reason) != ladder or now - existing.until >= FORGET_AFTER:
        return 1, now
    if existing.active(now) and now - existing.failed_at < BURST:
        return existing.failures, existing.failed_at
    return existing.failures + 1, now


def scope_of(reason: R) -> Scope | None:
    """What rests after `reason`; None when nothing does."""
    return SCOPES.get(reason)


def rests_alike(reason: R, other: R | None) -> bool:
    """Whether after both the same rests, for as long."""
    return other is not None and scope_of(reason) is scope_of(other) and ladder_of(reason) == ladder_of(other)


def should_probe(cooldown: Cooldown, now: datetime, is_primary: bool, last_probe: datetime | None = None) -> bool:
    """Whether one call may go to a cooling candidate to see if it has recovered: the primary only, near the end of its
    rest, and not sooner after a failure or a probe than a probe may follow another."""
    if not is_primary or not cooldown.active(now) or cooldown.until - now > PROBE_LEAD:
        return False
    latest = cooldown.failed_at if last_probe is None else max(cooldown.failed_at, last_probe)
    return now - latest >= PROBE_SPACING
