"""The reasons of failed model calls, and the facts by which a failure is classified."""

from dataclasses import dataclass
from enum import StrEnum


class FailoverReason(StrEnum):
    """The reason of a failed model call. It decides what the chain does next."""

    RATE_LIMIT = "RATE_LIMIT"
    OVERLOADED = "OVERLOADED"
    BILLING = "BILLING"
    AUTH = "AUTH"
    AUTH_PERMANENT = "AUTH_PERMANENT"
    TIMEOUT = "TIMEOUT"
    SERVER_ERROR = "SERVER_ERROR"
    TLS_CERTIFICATE = "TLS_CERTIFICATE"
    CONTEXT_OVERFLOW = "CONTEXT_OVERFLOW"
    FORMAT = "FORMAT"
    MODEL_NOT_FOUND = "MODEL_NOT_FOUND"
    SESSION_EXPIRED = "SESSION_EXPIRED"
    EMPTY_RESPONSE = "EMPTY_RESPONSE"
    NO_ERROR_DETAILS = "NO_ERROR_DETAILS"
    UNCLASSIFIED = "UNCLASSIFIED"
    UNKNOWN = "UNKNOWN"
    NO_FAILOVER = "NO_FAILOVER"


_BY_NAME = {reason.value: reason for reason in FailoverReason}


def parse_reason(name: str) -> FailoverReason:
    """Return the stored reason; UNKNOWN for one that only a newer replica knows, during a rolling
    upgrade.
    """
    return _BY_NAME.get(name, FailoverReason.UNKNOWN)


# After these no other candidate is called: the request itself has to change, or the failure is our
# own. Only a candidate with a larger context window is called after CONTEXT_OVERFLOW.
CHAIN_STOPPING = frozenset({FailoverReason.NO_FAILOVER, FailoverReason.CONTEXT_OVERFLOW})

TRANSIENT_REASONS = frozenset(
    {
        FailoverReason.RATE_LIMIT,
        FailoverReason.OVERLOADED,
        FailoverReason.TIMEOUT,
        FailoverReason.SERVER_ERROR,
        FailoverReason.EMPTY_RESPONSE,
        FailoverReason.NO_ERROR_DETAILS,
    }
)
"""After these the same model may answer the same request, in a moment or later."""


@dataclass(frozen=True)
class ModelFailure:
    """A failed model call as the provider's client reports it. Every field may be empty.

    `details` are further error texts of the same response. `cause_messages` are the texts of the
    causes, nearest first.
    """

    status: int | None = None
    message: str = ""
    code: str = ""
    error_type: str = ""
    provider: str = ""
    details: tuple[str, ...] = ()
    cause_messages: tuple[str, ...] = ()
