"""Why a model call failed, as the router acts on it, and the facts a failure is judged from."""

from dataclasses import dataclass
from enum import StrEnum


class FailoverReason(StrEnum):
    """What a failed model call means for the rest of its chain."""

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


# After these no other candidate is asked: the request itself has to change, or the failure is not a provider's.
CHAIN_STOPPING = frozenset({FailoverReason.NO_FAILOVER, FailoverReason.CONTEXT_OVERFLOW})


@dataclass(frozen=True)
class ModelFailure:
    """A failed model call as its adapter saw it; every field may be missing.

    `details` are further error texts of the same answer, `cause_messages` the texts of the causes, nearest first.
    """

    status: int | None = None
    message: str = ""
    code: str = ""
    error_type: str = ""
    provider: str = ""
    details: tuple[str, ...] = ()
    cause_messages: tuple[str, ...] = ()
