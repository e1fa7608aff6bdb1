"""Model calls that count in the budgets of runs."""

from dataclasses import dataclass

MAX_EXPIRY_SECONDS = 86_400.0
"""The longest time for which a call can be admitted."""

_MARGIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RunCall:
    """A model call of a run, or of a service for it, with the most that it may use.

    It counts in the budgets that the run shares: with its usage, or with the largest one if that is
    not recorded within `expires_in_seconds`. `epoch` is that of the run's token, or 0 if a service
    calls.
    """

    call_id: str
    tenant_id: str
    session_id: str
    run_id: str
    largest_token_count: int
    largest_cost_micros: int
    expires_in_seconds: float
    epoch: int = 0


def seconds_to_record(remaining_seconds: float) -> float:
    """Return the time to record a call whose deadline is in so many seconds.

    It leaves a minute after the deadline: the session service may be restarting then.
    """
    return min(max(remaining_seconds, 0.0) + _MARGIN_SECONDS, MAX_EXPIRY_SECONDS)
