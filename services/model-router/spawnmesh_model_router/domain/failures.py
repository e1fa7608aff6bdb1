"""The failed model calls of tenants by hour, model and reason."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from spawnmesh_model_router.domain.events import Attempt
from spawnmesh_model_router.domain.listed_span import earlier, listed_span
from spawnmesh_model_router.domain.reasons import FailoverReason

KEPT_HOURS = 7 * 24
"""The hours that are kept, the current one included."""

_DEFAULT_HOURS = 24
_HOUR = timedelta(hours=1)


class AfterFailure(StrEnum):
    """The next step of a chain after a failed call."""

    REPEATED = "REPEATED"  # The same candidate was called again, perhaps with another credential.
    FAILED_OVER = "FAILED_OVER"  # Another candidate was called.
    ENDED = "ENDED"  # Nothing was called any more.


@dataclass(frozen=True, slots=True, order=True)
class FailureKey:
    """An hour (UTC), a model as `provider/model`, and a reason: one row of a tenant."""

    hour: datetime
    model: str
    reason: str

    @classmethod
    def of(cls, attempt: Attempt) -> "FailureKey":
        """Return the row in which the failed attempt counts."""
        reason = attempt.reason or FailoverReason.UNKNOWN
        return cls(hour_of(attempt.end_time), str(attempt.model), reason.value)


@dataclass(frozen=True, slots=True)
class FailureCounts:
    """The number of failed calls, and of those after which another candidate was called or none."""

    failures: int
    failovers: int
    ends: int

    @classmethod
    def of(cls, after: AfterFailure) -> "FailureCounts":
        """Return the counts of one failed call."""
        return cls(1, int(after is AfterFailure.FAILED_OVER), int(after is AfterFailure.ENDED))

    def __add__(self, other: "FailureCounts") -> "FailureCounts":
        return FailureCounts(
            self.failures + other.failures, self.failovers + other.failovers, self.ends + other.ends
        )


@dataclass(frozen=True, slots=True)
class HourSpan:
    """The hours from `first` to `last`, both included; no hour if `last` is before `first`."""

    first: datetime
    last: datetime

    @classmethod
    def of(cls, start: datetime | None, end: datetime | None, now: datetime) -> "HourSpan":
        """Return the kept hours that begin at `start` or later and before `end`.

        Without an end it is now; without a start it is 24 hours earlier. Raises MeshError
        INVALID_REQUEST for a span that ends before it starts, or is longer than what is kept.
        """
        start, end = listed_span(
            start,
            end,
            now,
            default=_DEFAULT_HOURS * _HOUR,
            kept=KEPT_HOURS * _HOUR,
            kept_words=f"{KEPT_HOURS} hours",
        )
        last = hour_of(earlier(end, timedelta(microseconds=1)))
        return cls(max(_next_hour(start), first_kept_hour(now)), last)


def hour_of(moment: datetime) -> datetime:
    """Return the beginning of the hour (UTC) of this moment."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def first_kept_hour(now: datetime) -> datetime:
    """Return the first of the hours that are kept."""
    return hour_of(now) - (KEPT_HOURS - 1) * _HOUR


def _next_hour(moment: datetime) -> datetime:
    """Return the first hour that begins at this moment or later."""
    hour = hour_of(moment)
    return hour if hour == moment or hour > datetime.max.replace(tzinfo=UTC) - _HOUR else hour + _HOUR
